"""Rollout correction against the golden vectors of verl."""

from __future__ import annotations

import math
from typing import Any

from golden_vectors import Case, LeftOut, check

import rl_algos as ra


def importance(options: dict[str, Any]) -> ra.ImportanceSampling | None:
    level = options.get("rollout_is")
    if level is None:
        return None
    lower, upper = bounds(options.get("rollout_is_threshold", 2.0))
    return ra.ImportanceSampling(level, upper, lower, options.get("rollout_is_batch_normalize", False))


def rejections(options: dict[str, Any]) -> list[ra.Rejection]:
    names = options.get("rollout_rs")
    if names is None:
        return []
    limits = str(options["rollout_rs_threshold"]).split(",")
    result = []
    for name, limit in zip(names.split(","), limits, strict=True):
        level, statistic = name.removeprefix("seq_").rsplit("_", 1)
        lower, upper = bounds(limit)
        if statistic == "k1":
            # The reference bounds the inverse of the ratio.
            lower = 1.0 / upper if lower is None else lower
            result.append(ra.Rejection("ratio", level, upper=1.0 / lower, lower=1.0 / upper))
        else:
            result.append(ra.Rejection(statistic, level, upper=upper))
    return result


def bounds(spec: Any) -> tuple[float | None, float]:
    parts = [float(x) for x in str(spec).split("_")]
    return (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])


SAME_METRICS = {
    "training_log_ppl",
    "training_ppl",
    "rollout_log_ppl",
    "rollout_ppl",
    "log_ppl_diff",
    "log_ppl_abs_diff",
    "log_ppl_diff_max",
    "log_ppl_diff_min",
    "ppl_ratio",
    "kl",
    "k3_kl",
    "chi2_token",
    "chi2_seq",
}


def metrics_of(case: Case, metrics: dict[str, ra.Metric]) -> dict[str, float]:
    skip = set() if case.mask.bool().any(1).all() else SAME_METRICS - {"kl", "k3_kl", "chi2_token"}
    if "extreme" in case.tags:
        skip = skip | {"k3_kl", "chi2_seq", "chi2_token"}
    names = SAME_METRICS - skip
    if "bfloat16" in case.tags:
        # Half-precision sums of the reference; its float64 run is compared as a whole in no case.
        names = set()
    return {name: metrics[name].value().item() for name in names}


def correction(case: Case) -> dict[str, Any]:
    mask = case.inputs["response_mask"]
    if not mask.bool().any():
        raise LeftOut("nothing selected")
    weights, kept, metrics = ra.compute_rollout_correction(
        **case.inputs, importance=importance(case.params), rejections=rejections(case.params)
    )
    values = metrics_of(case, metrics)
    if "rollout_is_batch_norm_factor" in metrics:
        values["rollout_is_batch_norm_factor"] = metrics["rollout_is_batch_norm_factor"].value().item()
    if case.params["rollout_is"] is not None and "bfloat16" not in case.tags:
        values["rollout_is_eff_sample_size"] = ra.effective_sample_size(weights, mask).item()
        if "extreme" in case.tags or case.params["rollout_is_batch_normalize"]:
            del values["rollout_is_eff_sample_size"]
    got: dict[str, Any] = {
        "modified_response_mask": kept.float(),
        "metrics": {f"rollout_corr/{name}": value for name, value in values.items()},
    }
    if weights is not None:
        got["rollout_is_weights"] = weights
        assert math.isfinite(weights.sum().item())
    return got


def test_correction() -> None:
    check("verl_rollout_corr", "verl/rollout_corr", correction)


def test_off_policy_metrics() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        if not case.mask.bool().any():
            raise LeftOut("nothing selected")
        return {"metrics": metrics_of(case, ra.rollout_mismatch_metrics(**case.inputs))}

    check("verl_rollout_corr", "verl/offpolicy_metrics", adapter)
