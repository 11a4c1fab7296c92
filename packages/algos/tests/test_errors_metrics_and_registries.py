"""Typed errors at the entry, metrics that reduce exactly, registries open to users, a light import."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rl_algos as ra

SOURCE = Path(ra.__file__).parent
B2 = torch.zeros(2, 3)


def vanilla(**changes: object) -> object:
    inputs = {
        "old_log_prob": B2,
        "log_prob": B2,
        "advantages": B2,
        "response_mask": torch.ones(2, 3),
        "loss_agg_mode": "token-mean",
    }
    return ra.get_policy_loss_fn("vanilla")(**{**inputs, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "word"),
    [
        ({"advantages": torch.zeros(2)}, ra.ShapeError, "advantages"),
        ({"advantages": torch.zeros(2, 4)}, ra.ShapeError, "advantages"),
        ({"advantages": torch.zeros(2, 3, dtype=torch.int64)}, ra.DTypeError, "advantages"),
        ({"response_mask": torch.ones(3, 2)}, ra.ShapeError, "response_mask"),
        ({"loss_agg_mode": "token-maen"}, ra.UnknownNameError, "token-mean"),
        ({"loss_agg_mode": None}, ra.OptionError, "row_weights"),
        ({"row_weights": torch.ones(2)}, ra.OptionError, "row_weights"),
        ({"loss_agg_mode": "seq-mean-token-sum-norm"}, ra.OptionError, "norm_constant"),
        ({"loss_agg_mode": "prompt-mean"}, ra.OptionError, "prompt_index"),
        ({"clip_ratio": None}, ra.OptionError, "clip_ratio"),
        ({"clip_ratio_c": 0.5}, ra.OptionError, "clip_ratio_c"),
        ({"clip_ratoi": 0.5}, TypeError, "clip_ratoi"),
    ],
)
def test_errors_name_the_value(changes: dict[str, object], error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        vanilla(**changes)


def test_every_error_is_ours_and_standard() -> None:
    for error in (ra.ShapeError, ra.OptionError, ra.NonFiniteError, ra.DuplicateNameError):
        assert issubclass(error, ra.RLAlgosError) and issubclass(error, ValueError)
    assert issubclass(ra.UnknownNameError, KeyError) and issubclass(ra.DTypeError, TypeError)


def test_unknown_names_list_what_is() -> None:
    with pytest.raises(ra.UnknownNameError, match="did you mean 'grpo'"):
        ra.get_adv_estimator_fn("grpoo")
    with pytest.raises(ra.UnknownNameError, match="vanilla"):
        ra.get_policy_loss_fn("vanila")
    with pytest.raises(ra.UnknownNameError, match="k3"):
        ra.kl_penalty(B2, B2, "k4")


@pytest.mark.parametrize("ids", [[1, 2, 3], ["a"], [[1], [2]], [float("nan"), 1.0]])
def test_bad_ids_are_an_error(ids: list[object]) -> None:
    with pytest.raises(ra.RLAlgosError):
        ra.compute_grpo_outcome_advantage(B2, torch.ones(2, 3), ids)


def test_check_finite_names_tensor_and_place() -> None:
    x = torch.tensor([[0.0, float("nan")], [float("inf"), 0.0]])
    ra.check_finite("x", x, torch.tensor([[1, 0], [0, 1]]))
    with pytest.raises(ra.NonFiniteError, match=r"values holds 1 .*\(1, 0\)"):
        ra.check_finite("values", x, torch.tensor([[1, 0], [1, 1]]))


def test_a_user_can_register_and_is_told_of_a_clash() -> None:
    @ra.register_adv_est("sign_only")
    def sign_only(token_level_rewards: torch.Tensor, response_mask: torch.Tensor) -> tuple:
        signs = torch.where(response_mask.bool(), token_level_rewards.sum(1, keepdim=True).sign(), 0)
        return signs, signs

    try:
        assert ra.get_adv_estimator_fn("sign_only") is sign_only
        with pytest.raises(ra.DuplicateNameError, match="sign_only"):
            ra.register_adv_est("sign_only")(lambda token_level_rewards, response_mask: None)
    finally:
        del ra.ADV_ESTIMATOR_REGISTRY["sign_only"]


def test_registrations_say_what_is_needed() -> None:
    spec = ra.get_adv_estimator_spec(ra.AdvantageEstimator.GAE)
    assert spec.inputs == ("values",) and spec.options == {"gamma": 1.0, "lam": 1.0, "whiten": True}
    loss = ra.get_policy_loss_spec("clip_cov")
    assert loss.inputs == ("selected",) and "clip_ratio_high" in loss.options


def test_metrics_reduce_exactly_over_any_split() -> None:
    values, mask = torch.arange(12.0).view(3, 4), torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]])
    for kind in ("mean", "sum", "max", "min"):
        make = getattr(ra.Metric, kind)
        parts = [{"m": make(values[i : i + 1], mask[i : i + 1])} for i in range(3)]
        merged, whole = ra.merge_metrics(parts)["m"].value(), make(values, mask).value()
        assert merged == whole, kind
    assert ra.Metric.mean(values, mask * 0).value().isnan()
    assert ra.Metric.sum(values, mask * 0).value() == 0
    with pytest.raises(ra.OptionError):
        ra.Metric.mean(values).merge(ra.Metric.max(values))


def test_a_bfloat16_sum_does_not_saturate() -> None:
    ones = torch.ones(1, 100_000, dtype=torch.bfloat16)
    assert ra.Metric.sum(ones).value() == 100_000
    assert ra.agg_loss(ones, ones, "token-sum") == 100_000


def test_controllers_resume() -> None:
    controller = ra.AdaptiveKLController(0.1, 0.05, 100)
    controller.update(0.2, 10)
    other = ra.AdaptiveKLController(0.1, 0.05, 100)
    other.load_state_dict(controller.state_dict())
    assert other.value == controller.value == pytest.approx(0.102)


def test_loss_scale_reaches_half_precision_gradients() -> None:
    log_prob = torch.full((1, 4096), -0.5, dtype=torch.float16, requires_grad=True)
    ones = torch.ones(1, 4096)
    loss, _ = ra.compute_policy_loss_vanilla(
        old_log_prob=log_prob.detach(),
        log_prob=log_prob,
        advantages=1e-5 * ones,
        response_mask=ones,
        loss_agg_mode="token-mean",
    )
    (loss * 65536.0).backward()
    assert bool((log_prob.grad != 0).all())


def test_import_is_light_and_free_of_infrastructure() -> None:
    code = (
        "import sys, time, torch; t = time.process_time(); import rl_algos; "
        "print(time.process_time() - t, [m for m in ('ray', 'tensordict', 'transformers', 'vllm',"
        "'hypothesis') if m in sys.modules])"
    )
    # CPU seconds: other processes of a test run do not count.
    seconds = 9.0
    for _ in range(3):
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        took, modules = out.split(" ", 1)
        assert modules.strip() == "[]"
        seconds = min(seconds, float(took))
        if seconds < 0.1:
            break
    assert seconds < 0.1, f"import rl_algos adds {seconds:.3f} s"


def test_source_imports_torch_only_and_never_distributed() -> None:
    allowed = {"torch", "rl_algos", "hypothesis"} | set(sys.stdlib_module_names)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] in allowed, f"{path.name} imports {name}"
                assert not name.startswith("torch.distributed"), path.name


def test_every_public_function_is_documented_and_annotated() -> None:
    for name in ra.__all__:
        thing = getattr(ra, name)
        if inspect.isfunction(thing):
            assert thing.__doc__, name
            signature = inspect.signature(thing)
            assert all(p.annotation is not p.empty for p in signature.parameters.values()), name
            assert signature.return_annotation is not signature.empty, name
