"""PPO's clipped policy loss with dual clip, DAPO's clip-higher, and SAPO's soft gate in place of the clip.

PPO: Schulman et al. 2017, https://arxiv.org/abs/1707.06347. Dual clip: Ye et al. 2020,
https://arxiv.org/abs/1912.09729. Clip-higher: Yu et al. 2025, https://arxiv.org/abs/2503.14476. SAPO:
https://arxiv.org/abs/2511.20347.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor

from rl_algos.errors import OptionError
from rl_algos.masking import as_number
from rl_algos.metrics import Metric
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import (
    LOG_RATIO_LIMIT,
    LossBatch,
    PolicyLossOutput,
    Rows,
    TokenLoss,
    choose,
    clamp_log_ratio,
    evaluate,
)

_NO_BOUND = 1e30


def clip_bounds(
    clip_ratio: float | None,
    clip_ratio_low: float | None,
    clip_ratio_high: float | None,
    defaults: tuple[float | None, float | None] = (None, None),
) -> tuple[float, float]:
    """Return (low, high): each is the bound given for its side, else `clip_ratio`, else its default."""
    given = (clip_ratio_low, clip_ratio_high)
    both = defaults if clip_ratio is None else (clip_ratio, clip_ratio)
    low, high = (fallback if own is None else own for own, fallback in zip(given, both, strict=True))
    if low is None or high is None:
        raise OptionError("give clip_ratio, or both clip_ratio_low and clip_ratio_high")
    if not 1.0 - low <= 1.0 + high > 0:
        raise OptionError(f"no ratio lies between 1 - low and 1 + high for low={low}, high={high}")
    return low, high


@register_policy_loss("vanilla")
def compute_policy_loss_vanilla(
    *,
    clip_ratio: float | None = 0.2,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 3.0,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""PPO's clipped surrogate with dual clip.

    With r = exp(log_prob - old_log_prob), the log-ratio clamped to plus or minus 20:

        loss = max(-A r, -A clip(r, 1 - low, 1 + high)),   for A < 0 at most -A c

    Args:
        clip_ratio: bound for each side that is not given on its own.
        clip_ratio_low, clip_ratio_high: distances from 1.
        clip_ratio_c: the dual clip, above 1.
        weighting: see `LossBatch`; `row_weights` or `loss_agg_mode` is required.

    Returns:
        `(loss, metrics)`: scalar float32 or float64; `pg_clipfrac`, `pg_clipfrac_lower` (dual clip),
        `ppo_kl`, `ratio_clampfrac`. Without a selected token the loss and gradient are 0.
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high)
    token_loss = clipped_surrogate(low, high, clip_ratio_c)
    return evaluate(token_loss, **batch)


@register_policy_loss("clip_higher")
def compute_policy_loss_clip_higher(
    *,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.28,
    clip_ratio_c: float = 10.0,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    """`compute_policy_loss_vanilla` with DAPO's bounds: more room upwards, so that rare tokens can grow."""
    token_loss = clipped_surrogate(clip_ratio_low, clip_ratio_high, clip_ratio_c)
    return evaluate(token_loss, **batch)


@register_policy_loss("sapo")
def compute_policy_loss_sapo(
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""SAPO: surrogate through a sigmoid gate, whose slope is 1 at ratio 1 and fades on both sides.

        loss = -A (4 / tau) sigmoid(tau (r - 1)),   tau = tau_pos for A > 0, else tau_neg

    The paper aggregates by `seq-mean-token-mean`; the loss follows whatever weights it is given. `tau_pos`,
    `tau_neg` positive; a larger one fades faster. Other arguments as for `vanilla`. Metrics: `ppo_kl`,
    `ratio_clampfrac`.
    """
    if not (tau_pos > 0 and tau_neg > 0):
        raise OptionError(f"tau_pos={tau_pos} and tau_neg={tau_neg} must be positive")

    def token_loss(rows: Rows) -> TokenLoss:
        raw = rows.log_ratio.detach()
        log_ratio = clamp_log_ratio(raw)
        ratio = log_ratio.exp()
        tau = choose(rows.advantages > 0, tau_pos, tau_neg, ratio)
        gate = torch.sigmoid(tau * (ratio - 1.0))
        slope = (
            -4.0 * rows.advantages * ratio * gate * (1.0 - gate) * as_number(log_ratio == raw, ratio.dtype)
        )
        return TokenLoss(-4.0 * rows.advantages * gate / tau, rows.ratio_metrics(raw, log_ratio), slope)

    return evaluate(token_loss, **batch)


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    cliprange: float | None = None,
    cliprange_low: float | None = None,
    cliprange_high: float | None = None,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: str = "token-mean",
    *,
    norm_constant: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """PPO loss of one whole mini-batch under its classic name; see `compute_policy_loss_vanilla`.

    `cliprange` holds for each side that is not given on its own.

    Returns:
        `(pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower)`, scalars.
    """
    loss, metrics = compute_policy_loss_vanilla(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=advantages,
        response_mask=response_mask,
        clip_ratio=cliprange,
        clip_ratio_low=cliprange_low,
        clip_ratio_high=cliprange_high,
        clip_ratio_c=clip_ratio_c,
        loss_agg_mode=loss_agg_mode,
        norm_constant=norm_constant,
    )
    names = ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower")
    clipfrac, kl, lower = (metrics[name].value().to(loss.dtype) for name in names)
    return loss, clipfrac, kl, lower


def clipped_surrogate(low: float, high: float, dual: float) -> Callable[[Rows], TokenLoss]:
    """Return the per-token loss of PPO with dual clip."""
    if dual <= 1.0:
        raise OptionError(f"clip_ratio_c is {dual}, expected a value above 1")

    def token_loss(rows: Rows) -> TokenLoss:
        return bounded_loss(rows, rows.log_ratio.detach(), low, high, dual)

    return token_loss


def bounded_loss(
    rows: Rows, log_ratio: Tensor, low: float, high: float, dual: float = _NO_BOUND
) -> TokenLoss:
    """Clipped surrogate of a log-ratio that is 0 under the mask, with its gradient in closed form: `-A r`
    where no bound holds, else 0.

    For A >= 0 it is `-A min(r, 1 + high)`; for A < 0 `-A` times r between `1 - low` and `dual`.
    """
    clamped = clamp_log_ratio(log_ratio)
    ratio = clamped.exp()
    negative = rows.advantages < 0
    upper = choose(negative, min(dual, _NO_BOUND), 1.0 + high, ratio)
    lower = choose(negative, 1.0 - low, 0.0, ratio)
    bounded = torch.minimum(torch.maximum(ratio, lower), upper)
    loss = -rows.advantages * bounded
    free = bounded == ratio
    clipped = ~free & (rows.advantages != 0)
    beyond_dual = clipped & negative & (ratio > 1.0)
    beyond = log_ratio.abs() > LOG_RATIO_LIMIT
    metrics = {
        "pg_clipfrac": rows.share(clipped & ~beyond_dual),
        "pg_clipfrac_lower": rows.share(beyond_dual),
        "ppo_kl": Metric.mean_of_sum(-clamped.sum(), rows.lengths.sum()),
        "ratio_clampfrac": rows.share(beyond),
    }
    # The number, not the bool: a product of two dtypes is converted piece by piece.
    return TokenLoss(loss, metrics, loss * as_number(free & ~beyond, loss.dtype))
