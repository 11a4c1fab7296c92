"""Sequence parallelism, replicas, offload, checkpointing, resharding: all give one rank's gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_exact_gradients import close
from workers_models import make_batch, save_tiny_llama
from workers_programs import actor_config, policy_engine, run_actor, train_steps
from workers_ranks import run_ranks

from rl_workers import FSDPConfig

BATCH = make_batch(groups=3, n=3, prompt=9, response=7, seed=3)
F32 = {"compute_dtype": "float32"}


@pytest.fixture(scope="module")
def reference(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_ranks(tmp_path_factory.mktemp("one"), 1, train_steps, tiny_model, BATCH, "padded", 4096)[0]


@pytest.mark.parametrize(
    ("world", "options"),
    [
        (2, {"sp": 2}),
        (4, {"sp": 2}),
        (4, {"sp": 4}),
        (2, {"fsdp": FSDPConfig(**F32, fsdp_size=1)}),
        (4, {"fsdp": FSDPConfig(**F32, fsdp_size=2)}),
        (2, {"fsdp": FSDPConfig(**F32, param_offload=True)}),
        (2, {"fsdp": FSDPConfig(**F32, reshard_after_forward=True)}),
        (2, {"enable_gradient_checkpointing": True}),
    ],
    ids=[
        "ulysses2",
        "dp2-ulysses2",
        "ulysses4",
        "replicas2",
        "hsdp2x2",
        "offload",
        "reshard",
        "checkpointing",
    ],
)
def test_one_step(
    tiny_model: str, tmp_path: Path, reference: Any, world: int, options: dict[str, Any]
) -> None:
    for found in run_ranks(tmp_path, world, train_steps, tiny_model, BATCH, "shared", 40, **options):
        close(found, reference)


def test_bf16_compute_is_near(tiny_model: str, tmp_path: Path, reference: Any) -> None:
    found = run_ranks(tmp_path, 2, train_steps, tiny_model, BATCH, "shared", 4096, fsdp=FSDPConfig())[0]
    assert found["losses"][0] == pytest.approx(reference["losses"][0], abs=0.05)
    for name, grad in reference["grads"].items():
        assert np.linalg.norm(found["grads"][name] - grad) < 0.1 * np.linalg.norm(grad), name


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    path = save_tiny_llama(tmp_path, kv_heads=1)
    config = actor_config(path, actor__ulysses_sequence_parallel_size=2)
    with pytest.raises(AssertionError, match="must divide the 4 attention and the 1 key-value heads"):
        run_ranks(tmp_path, 2, run_actor, config, BATCH, 0)
    with pytest.raises(AssertionError, match="fsdp_size=3 does not divide the 4 ranks"):
        run_ranks(tmp_path, 4, policy_engine, path, fsdp=FSDPConfig(fsdp_size=3))


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 6e-2), ("float16", 1e-2)])
def test_half_precision(tiny_model: str, tmp_path: Path, reference: Any, dtype: str, limit: float) -> None:
    fsdp = FSDPConfig(compute_dtype=dtype)
    found = run_ranks(tmp_path, 2, train_steps, tiny_model, BATCH, "shared", 4096, fsdp=fsdp)[0]
    assert found["losses"] == pytest.approx(reference["losses"], abs=2e-2)
    error = sum(np.square(found["grads"][name] - grad).sum() for name, grad in reference["grads"].items())
    length = sum(np.square(grad).sum() for grad in reference["grads"].values())
    assert np.sqrt(error / length) < limit  # the model's own padded form: 4.5e-2 and 5e-3


@pytest.mark.parametrize("world", [1, 2])
def test_a_long_gradient_is_shortened(tiny_model: str, tmp_path: Path, reference: Any, world: int) -> None:
    length = float(np.sqrt(sum(np.square(grad).sum() for grad in reference["grads"].values())))
    start = run_ranks(tmp_path, 1, train_steps, tiny_model, BATCH, "packed", 4096, 0)[0]["weights"]
    for limit, wanted in ((length / 3, length / 3), (length * 3, length)):
        (end, *_) = run_ranks(
            tmp_path, world, train_steps, tiny_model, BATCH, "packed", 4096, grad_clip=limit
        )
        moved = [np.square(end["weights"][name] - start[name]).sum() for name in reference["grads"]]
        assert np.sqrt(sum(moved)) == pytest.approx(0.1 * wanted, rel=1e-4)
