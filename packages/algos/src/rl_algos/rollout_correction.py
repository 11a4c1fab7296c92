"""Correction for tokens sampled by another policy than the one that is trained (engine, precision,
staleness).

Importance sampling, truncated or masked (IcePop), and rejection of tokens or rows. Statistics are over the
batch that is given: call it on the global batch and cut the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rl_algos.errors import OptionError
from rl_algos.masking import select
from rl_algos.metrics import Metric
from rl_algos.mismatch import rollout_mismatch_metrics
from rl_algos.token_loss import clamp_log_ratio
from rl_algos.validation import check_mask, check_tokens, compute_dtype


@dataclass(frozen=True)
class ImportanceSampling:
    """How importance weights are formed from r = pi_trainer / pi_engine.

    `level`: "token" (r of each token) or "sequence" (the row's product, on each of its tokens).
    `upper`: weights above it are cut to it (truncated) or, with `lower`, set to 0 (masked, IcePop).
    `lower`: weights below it are set to 0.
    `batch_normalize`: divide by the batch's mean weight (over tokens, or over rows for "sequence").
    """

    level: Literal["token", "sequence"] = "token"
    upper: float = 2.0
    lower: float | None = None
    batch_normalize: bool = False

    def __post_init__(self) -> None:
        if self.level not in ("token", "sequence"):
            raise OptionError(f"level is {self.level!r}, expected 'token' or 'sequence'")
        if not self.upper > 0 or (self.lower is not None and not 0 <= self.lower <= self.upper):
            raise OptionError(f"bounds must satisfy 0 <= lower <= upper, got {self.lower} and {self.upper}")


@dataclass(frozen=True)
class Rejection:
    """What is rejected, by a statistic of d = log pi_trainer - log pi_engine.

    `statistic`: "ratio" (exp of d: bounds `lower` and `upper` on the ratio itself), "k2" (d^2 / 2) or "k3"
    (exp(d) - 1 - d), both bounded above only.
    `level`: "token" rejects single tokens; "sum", "mean" and "max" over the row's tokens reject whole rows.
    For "ratio", "mean" is the geometric mean and "sum" the product; "max" does not exist.
    `lower` of a ratio is `1 / upper` by default.
    """

    statistic: Literal["ratio", "k2", "k3"] = "ratio"
    level: Literal["token", "sum", "mean", "max"] = "token"
    upper: float = 2.0
    lower: float | None = None

    def __post_init__(self) -> None:
        if self.statistic not in ("ratio", "k2", "k3") or self.level not in ("token", "sum", "mean", "max"):
            raise OptionError(f"no rejection by {self.statistic!r} at level {self.level!r}")
        if self.statistic == "ratio" and self.level == "max":
            raise OptionError(
                "a ratio's maximum is no two-sided statistic: use 'k2' or 'k3' with level 'max'"
            )
        if self.statistic != "ratio" and self.lower is not None:
            raise OptionError(f"{self.statistic} is bounded above only: leave lower out")
        if not self.upper > 0 or not 0 <= self.low <= self.upper:
            raise OptionError(f"bounds must satisfy 0 <= lower <= upper, got {self.lower} and {self.upper}")

    @property
    def low(self) -> float:
        """The effective lower bound."""
        if self.statistic != "ratio":
            return 0.0
        return 1.0 / self.upper if self.lower is None else self.lower


def compute_rollout_correction(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    importance: ImportanceSampling | None = None,
    rejections: Sequence[Rejection] = (),
) -> tuple[Tensor | None, Tensor, dict[str, Metric]]:
    r"""Importance weights, mask after rejection, and metrics.

    Args:
        old_log_prob: the trainer's log-probs, floating `[B, T]`.
        rollout_log_prob: the engine's, floating `[B, T]`.
        response_mask: `[B, T]`; nothing under it has an influence.
        importance: None for no weights.
        rejections: a token stays if it passes all of them.

    Returns:
        `(weights, mask, metrics)`. `weights` `[B, T]`, detached, 0 outside the mask, or None: pass them to a
        policy loss as `rollout_is_weights`. `mask` bool `[B, T]`: the response mask less what is rejected;
        rows that lose every token count no more in a loss. `metrics`: those of `rollout_mismatch_metrics` and
        `rollout_is_mean`, `rollout_is_square_mean`, `rollout_is_max`, `rollout_is_min` (weights before
        normalisation), `rollout_is_fraction_high`, `rollout_is_fraction_low` (raw ratio out of bounds; the
        lower bound of the truncated form is 1 / upper), `rollout_is_batch_norm_factor`,
        `rollout_rs_masked_fraction`, `rollout_rs_seq_masked_fraction`.
    """
    shape = check_tokens(old_log_prob=old_log_prob, rollout_log_prob=rollout_log_prob)
    mask = check_mask(response_mask, shape)
    with torch.no_grad():
        dtype = compute_dtype(old_log_prob, rollout_log_prob)
        log_ratio = select(old_log_prob.to(dtype), mask) - select(rollout_log_prob.to(dtype), mask)
        metrics = rollout_mismatch_metrics(old_log_prob, rollout_log_prob, mask)
        weights = None
        if importance is not None:
            weights, is_metrics = _weights(log_ratio, mask, importance)
            metrics.update(is_metrics)
        kept = mask
        for rejection in rejections:
            kept = kept & _passes(log_ratio, mask, rejection)
        if rejections:
            metrics["rollout_rs_masked_fraction"] = Metric.mean((~kept).float(), mask)
            lost = (mask & ~kept).any(dim=1)
            metrics["rollout_rs_seq_masked_fraction"] = Metric.mean(lost.float(), mask.any(dim=1))
        return weights, kept, metrics


def effective_sample_size(weights: Tensor, mask: Tensor) -> Tensor:
    r"""Normalised effective sample size `(sum w)^2 / (n sum w^2)` over the mask, a scalar from 0 to 1.

    1 for equal weights; 0 where all are 0 or nothing is selected. From the metrics of the correction it is
    `rollout_is_mean ** 2 / rollout_is_square_mean`, exact over ranks.
    """
    chosen = select(weights.double(), check_mask(mask, weights.shape))
    square = chosen.square().sum() * check_mask(mask, weights.shape).sum()
    return torch.where(square > 0, chosen.sum().square() / square.clamp(min=1e-300), 0.0)


def _weights(
    log_ratio: Tensor, mask: Tensor, options: ImportanceSampling
) -> tuple[Tensor, dict[str, Metric]]:
    by_row = options.level == "sequence"
    logs = log_ratio.sum(dim=1, keepdim=True).expand_as(log_ratio) if by_row else log_ratio
    raw = clamp_log_ratio(logs).exp()
    low = 1.0 / options.upper if options.lower is None else options.lower
    if options.lower is None:
        weights = raw.clamp(max=options.upper)
    else:
        weights = torch.where((raw >= options.lower) & (raw <= options.upper), raw, 0)
    weights = select(weights, mask)
    metrics = {
        "rollout_is_mean": Metric.mean(weights, mask),
        "rollout_is_square_mean": Metric.mean(weights.square(), mask),
        "rollout_is_max": Metric.max(weights, mask),
        "rollout_is_min": Metric.min(weights, mask),
        "rollout_is_fraction_high": Metric.mean((raw > options.upper).float(), mask),
        "rollout_is_fraction_low": Metric.mean((raw < low).float(), mask),
    }
    if options.batch_normalize:
        factor = Metric.mean(weights.amax(dim=1), mask.any(dim=1)) if by_row else metrics["rollout_is_mean"]
        metrics["rollout_is_batch_norm_factor"] = factor
        # With every weight out of bounds there is nothing to scale: they stay 0.
        scale = torch.where(factor.total > 0, factor.count / factor.total.clamp(min=1e-300), 1.0)
        weights = weights * scale.to(weights.dtype)
    return weights, metrics


def _passes(log_ratio: Tensor, mask: Tensor, rejection: Rejection) -> Tensor:
    bounded = clamp_log_ratio(log_ratio)
    if rejection.statistic == "ratio":
        value = bounded
    elif rejection.statistic == "k2":
        value = 0.5 * bounded.square()
    else:
        value = torch.expm1(bounded) - bounded
    if rejection.level == "max":
        value = torch.where(mask, value, float("-inf")).amax(dim=1, keepdim=True)
    elif rejection.level != "token":
        value = value.sum(dim=1, keepdim=True)
        if rejection.level == "mean":
            value = value / mask.sum(dim=1, keepdim=True).clamp(min=1)
    if rejection.statistic == "ratio":
        value = clamp_log_ratio(value).exp()
    return ((value >= rejection.low) & (value <= rejection.upper)).expand_as(mask)
