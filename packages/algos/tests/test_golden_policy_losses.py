"""Policy losses against the golden vectors of verl, TRL and OpenRLHF: value, metrics and gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from golden_vectors import Case, LeftOut, check, grad, leaf
from torch import Tensor

import rl_algos as ra

VERL_OPTIONS = {"clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg"}


def verl_weights(mask: Tensor, mode: str, info: dict[str, Any]) -> Tensor:
    """Row weights for the counts that the case calls global (they need not be those of its mask)."""
    width = float(info.get("loss_scale_factor") or mask.shape[1])
    norm = width if mode == "seq-mean-token-sum-norm" else None
    weights = ra.loss_weights(mask, mode, norm_constant=norm, dtype=torch.float64) * info.get("dp_size", 1)
    if mode == "token-mean" and info.get("batch_num_tokens"):
        weights = weights * mask.bool().sum() / info["batch_num_tokens"]
    if mode.startswith("seq-mean") and info.get("global_batch_size"):
        weights = weights * mask.bool().any(1).sum() / info["global_batch_size"]
    return weights


def nothing_selected(case: Case) -> None:
    if not case.mask.bool().any():
        raise LeftOut("nothing selected")


def verl(
    case: Case, name: str, *, mode: str | None = None, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    nothing_selected(case)
    if "extreme50" in case.tags and name in ("gspo", "clip_cov", "kl_cov", "geo_mean"):
        raise LeftOut("log-ratios of 50 without a clamp at 20")
    inputs = dict(case.inputs)
    log_prob = leaf(inputs.pop("log_prob"))
    mode = mode or case.params["loss_agg_mode"]
    info = {} if name == "geo_mean" else case.params.get("global_batch_info", {})
    known = VERL_OPTIONS & set(ra.get_policy_loss_spec(name).options)
    given = {k: v for k, v in case.params["config"].items() if k in known}
    loss, metrics = ra.get_policy_loss_fn(name)(
        log_prob=log_prob,
        row_weights=verl_weights(inputs["response_mask"], mode, info),
        **inputs,
        **given,
        **(options or {}),
    )
    values = {f"actor/{key}": metric.value().item() for key, metric in metrics.items()}
    return {"loss": loss, "metrics": values, "grad_log_prob": grad(loss, log_prob)}


@pytest.mark.parametrize("name", ["vanilla", "gspo", "cispo", "gpg", "dppo_tv", "dppo_kl"])
def test_verl_losses(name: str) -> None:
    check("verl_policy_loss", f"verl/ploss/{name}", lambda case: verl(case, name))


def test_verl_dro() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        return verl(case, "dro", options={"dro_beta": case.params["policy_loss"]["dro_beta"]})

    check("verl_policy_loss", "verl/ploss/dro/", adapter)


def test_verl_sapo_whatever_the_mode() -> None:
    check("verl_policy_loss", "verl/ploss/sapo", lambda case: verl(case, "sapo", mode="seq-mean-token-mean"))


def test_verl_geo_mean_whatever_the_mode() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        mask = case.mask.bool()
        if not mask.any(1).all():
            raise LeftOut("a fully masked row dilutes the mean over sequences")
        inputs = dict(case.inputs)
        weights = inputs.get("rollout_is_weights")
        if weights is not None:
            logs = torch.where(mask, weights.log(), 0).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
            case.inputs["rollout_is_weights"] = logs.exp().expand_as(weights)
        try:
            return verl(case, "geo_mean", mode="seq-mean-token-mean")
        finally:
            case.inputs.update(inputs)

    check("verl_policy_loss", "verl/ploss/geo_mean", adapter)


def test_verl_clip_cov_with_tokens_chosen_apart() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        nothing_selected(case)
        inputs = {k: case.inputs[k] for k in ("old_log_prob", "log_prob", "advantages", "response_mask")}
        generator = torch.Generator().manual_seed(case.params["torch_seed"])
        selected = ra.select_clip_cov_tokens(
            **inputs, **case.params["config"], **case.params["policy_loss"], generator=generator
        )
        got = verl(case, "clip_cov", options={"selected": selected})
        got["metrics"]["actor/pg_clipfrac"] = got["metrics"]["actor/cov_clipfrac"]
        return got

    check("verl_policy_loss", "verl/ploss/clip_cov", adapter)


def test_verl_kl_cov_with_tokens_chosen_apart() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        inputs = {k: case.inputs[k] for k in ("log_prob", "advantages", "response_mask")}
        options = case.params["policy_loss"]
        if "zero_adv" in case.tags:
            raise LeftOut("every covariance is 0: which tokens are largest is arbitrary")
        selected = ra.select_kl_cov_tokens(**inputs, kl_cov_ratio=options["kl_cov_ratio"])
        got = verl(case, "kl_cov", options={"selected": selected, "ppo_kl_coef": options["ppo_kl_coef"]})
        got["metrics"]["actor/ppo_kl"] = got["metrics"]["actor/ppo_kl_abs"]
        return got

    check("verl_policy_loss", "verl/ploss/kl_cov", adapter)


def test_verl_bypass_mode_is_a_correction_and_a_loss() -> None:
    check("verl_policy_loss", "verl/ploss/bypass_mode", bypass)


def bypass(case: Case) -> dict[str, Any]:
    nothing_selected(case)
    from test_golden_rollout_correction import importance, rejections

    options = case.params["policy_loss"]["rollout_correction"]
    old, log_prob = case.inputs["old_log_prob"], leaf(case.inputs["log_prob"])
    weights, mask, _ = ra.compute_rollout_correction(
        log_prob.detach(),
        old,
        case.inputs["response_mask"],
        importance(options),
        rejections(options),
    )
    if not mask.any():
        raise LeftOut("nothing selected after rejection")
    reinforce = options["loss_type"] == "reinforce"
    loss, metrics = ra.get_policy_loss_fn("reinforce" if reinforce else "vanilla")(
        old_log_prob=old,
        log_prob=log_prob,
        advantages=case.inputs["advantages"],
        response_mask=mask,
        rollout_is_weights=weights if reinforce else None,
        row_weights=verl_weights(mask, case.params["loss_agg_mode"], case.params["global_batch_info"]),
    )
    values = {f"actor/{key}": metric.value().item() for key, metric in metrics.items()}
    return {"loss": loss, "metrics": values, "grad_log_prob": grad(loss, log_prob)}


def test_classic_compute_policy_loss() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        log_prob = leaf(case.inputs["log_prob"])
        inputs = {**case.inputs, "log_prob": log_prob}
        mode = case.params["loss_agg_mode"]
        norm = float(log_prob.shape[1]) if mode == "seq-mean-token-sum-norm" else None
        loss, clipfrac, kl, lower = ra.compute_policy_loss(**inputs, **case.params, norm_constant=norm)
        return {
            "loss": loss,
            "pg_clipfrac": clipfrac,
            "ppo_kl": kl,
            "pg_clipfrac_lower": lower,
            "grad_log_prob": grad(loss, log_prob),
        }

    check("verl_policy_loss", "verl/compute_policy_loss", adapter)


def openrlhf(case: Case) -> dict[str, Any]:
    nothing_selected(case)
    options = case.params["init"]
    low, high = options.get("clip_eps_low", 0.2), options.get("clip_eps_high", 0.2)
    sequence = options.get("policy_loss_type") == "gspo"
    mode = "seq-mean-token-mean" if sequence or not options.get("token_level_loss", True) else "token-mean"
    mask = case.inputs["action_mask"]
    if "extreme50" in case.tags:
        raise LeftOut("log-ratios of 50 without a clamp at 20")
    log_prob = leaf(case.inputs["log_probs"])
    old = case.inputs["old_log_probs"]
    weights = None
    if "rollout_log_probs" in case.inputs:
        weights = openrlhf_importance(case, old, mask)
    extra = {} if sequence else {"clip_ratio_c": options.get("dual_clip") or 1e30}
    loss, metrics = ra.get_policy_loss_fn("gspo" if sequence else "vanilla")(
        old_log_prob=old,
        log_prob=log_prob,
        advantages=case.inputs["advantages"],
        response_mask=mask,
        row_weights=verl_weights(mask, mode, case.params["global"]),
        clip_ratio_low=low,
        clip_ratio_high=high,
        rollout_is_weights=weights,
        **extra,
    )
    slope = grad(loss, log_prob)
    if sequence:
        # Theirs differentiates the row's ratio; ours is its token form: the same sum over a row.
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        slope = (slope.double().sum(1, keepdim=True) / lengths).expand_as(slope)
    return {"loss": loss, "grad_log_probs": slope, "ppo_kl": metrics["ppo_kl"].value()}


def openrlhf_importance(case: Case, old: Tensor, mask: Tensor) -> Tensor:
    low, high = case.params["init"]["vllm_is_truncated_threshold"]
    kind = case.params["init"]["vllm_is_correction_type"]
    rollout = case.inputs["rollout_log_probs"]
    if kind == "seq-mask-tis":
        raw, _, _ = ra.compute_rollout_correction(old, rollout, mask, ra.ImportanceSampling(upper=1e30))
        _, kept, _ = ra.compute_rollout_correction(
            old, rollout, mask, rejections=[ra.Rejection("ratio", "mean", upper=high, lower=low)]
        )
        return torch.where(kept, raw, 0)
    options = ra.ImportanceSampling(upper=high, lower=low if kind == "icepop" else None)
    weights, _, _ = ra.compute_rollout_correction(old, rollout, mask, options)
    return weights.clamp(min=low) if kind == "tis" else weights


def test_openrlhf_policy_loss() -> None:
    check("openrlhf", "openrlhf/policy_loss/", openrlhf)


TRL_LOSSES: dict[str, Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "cispo": lambda p: ("cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": p["epsilon_high"] - 1.0}),
    "sapo": lambda p: (
        "sapo",
        {"tau_pos": p["sapo_temperature_pos"], "tau_neg": p["sapo_temperature_neg"]},
    ),
    "vespo": lambda p: (
        "vespo",
        {
            "k_pos": p["vespo_k_pos"],
            "lambda_pos": p["vespo_lambda_pos"],
            "k_neg": p["vespo_k_neg"],
            "lambda_neg": p["vespo_lambda_neg"],
        },
    ),
    "luspo": lambda p: ("luspo", clip_options(p)),
}


def clip_options(p: dict[str, Any]) -> dict[str, Any]:
    return {"clip_ratio_low": p["epsilon_low"], "clip_ratio_high": p["epsilon_high"]}


def trl_leave_out(case: Case) -> None:
    p = case.params
    if not case.mask.bool().any(1).all() and p["loss_type"] in ("grpo", "dr_grpo", "sapo", "luspo"):
        raise LeftOut("fully masked rows dilute the mean over sequences")
    if "extreme50" in case.tags:
        raise LeftOut("log-ratios of 50 without a clamp at 20")
    if p["top_entropy_quantile"] < 1.0 or p["off_policy_mask_threshold"] is not None:
        raise LeftOut("token selection of the trainer, not of the loss")
    if p["loss_type"] == "sapo" and "float64" in case.tags:
        raise LeftOut("SAPO's temperature is float32 in a float64 run")
    if p["entropy_coef"]:
        raise LeftOut("the trainer's entropy term")
    if p["importance_sampling_level"] == "sequence" and p["loss_type"] not in ("grpo", "luspo"):
        raise LeftOut("a token loss on sequence ratios")
    if p["loss_type"] == "vespo" and "importance_sampling_ratio" in case.inputs:
        raise LeftOut("VESPO's correction is summed without the mask")
    if p["loss_type"] == "luspo" and p["importance_sampling_level"] == "token":
        raise LeftOut("LUSPO on token ratios averages over padding")


def trl_mode(loss_type: str) -> tuple[str, bool]:
    if loss_type in ("bnpo", "dapo", "cispo", "vespo"):
        return "token-mean", False
    return ("seq-mean-token-sum-norm", True) if loss_type == "dr_grpo" else ("seq-mean-token-mean", False)


def trl(case: Case) -> dict[str, Any]:
    trl_leave_out(case)
    p, mask = case.params, case.inputs["completion_mask"]
    if "tool_mask" in case.inputs:
        mask = mask * case.inputs["tool_mask"]
    log_prob, shape = leaf(case.inputs["per_token_logps"]), mask.shape
    old = case.inputs["old_per_token_logps"]
    sequence = p["importance_sampling_level"] == "sequence"
    name, options = TRL_LOSSES.get(p["loss_type"], lambda p: ("vanilla", clip_options(p)))(p)
    if name == "vanilla":
        name = "gspo" if sequence else "vanilla"
        cap = p["delta"] if p["delta"] is not None else 1e30
        options = clip_options(p) if sequence else {**clip_options(p), "clip_ratio_c": cap}
    mode, norm = trl_mode(p["loss_type"])
    constant = float(p["max_completion_length"]) if norm else None
    weights = ra.loss_weights(mask, mode, norm_constant=constant, dtype=torch.float64)
    if p["loss_type"] not in ("dapo", "cispo", "vespo"):
        weights = weights / p["ga_steps"]
    elif "tool_mask" in case.inputs:
        # Their mean over tokens divides by the tool's tokens too.
        weights = weights * mask.sum() / case.inputs["completion_mask"].sum()
    extra = case.inputs.get("importance_sampling_ratio")
    inputs = {
        "old_log_prob": old,
        "log_prob": log_prob,
        "advantages": case.inputs["advantages"][:, None].expand(shape).contiguous(),
        "response_mask": mask,
    }
    if extra is not None:
        extra = extra.expand(shape).contiguous()
    loss, _ = ra.get_policy_loss_fn(name)(**inputs, row_weights=weights, rollout_is_weights=extra, **options)
    if p["beta"]:
        unbiased = p["use_bias_correction_kl"]
        kl_of = ra.kl_loss if unbiased else lambda a, b, _old, k: ra.kl_penalty(a, b, k)
        kl = kl_of(log_prob, case.inputs["ref_per_token_logps"], old, "k3")
        loss = loss + p["beta"] * ra.weighted_sum(kl, mask, weights)
    return {"loss": loss, "grad_per_token_logps": grad(loss, log_prob)}


@pytest.mark.parametrize("name", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo"])
def test_trl_losses(name: str) -> None:
    def adapter(case: Case) -> dict[str, Any]:
        if case.params["loss_type"] != name:
            raise LeftOut("")
        return trl(case)

    check("trl", f"trl/grpo_loss/{name}", adapter)


def test_trl_rloo_loss_is_the_clipped_loss_of_whole_rows() -> None:
    """One ratio per row, the product of its tokens': a batch whose only column holds the row's sums."""

    def adapter(case: Case) -> dict[str, Any]:
        mask = case.inputs["completion_mask"]
        if not mask.bool().any(1).all():
            raise LeftOut("fully masked rows dilute the mean over sequences")
        if "extreme50" in case.tags:
            raise LeftOut("log-ratios of 50 without a clamp at 20")
        log_prob = leaf(case.inputs["per_token_logps"])
        old = case.inputs["old_per_token_logps"]
        row, old_row = ((x.double() * mask).sum(1, keepdim=True) for x in (log_prob, old))
        advantages = case.inputs["advantages"].double()[:, None]
        low, high = case.params["epsilon_low"], case.params["epsilon_high"]
        loss, _, _, _ = ra.compute_policy_loss(
            old_row, row, advantages, torch.ones_like(row), None, low, high, clip_ratio_c=1e30
        )
        return {"loss": loss, "grad_per_token_logps": grad(loss, log_prob)}

    check("trl", "trl/rloo_loss", adapter)
