"""CISPO: clipped importance weights, unclipped gradient (MiniMax 2025, https://arxiv.org/abs/2506.13585)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from rl_algos.ppo import clip_bounds
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import (
    PolicyLossOutput,
    Rows,
    TokenLoss,
    Weighting,
    clamp_log_ratio,
    evaluate,
)

if TYPE_CHECKING:
    from torch import Tensor


@register_policy_loss("cispo", anchored=True)
def compute_policy_loss_cispo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio: float | None = None,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **weighting: Unpack[Weighting],
) -> PolicyLossOutput:
    r"""Policy gradient weighted by the clipped ratio; no token's gradient is dropped.

        loss = -sg[clip(r, 1 - low, 1 + high)] A log_prob

    Bounds are distances from 1 (an absolute cap c is `clip_ratio_high=c - 1`), 1 and 4 if none is given.
    Other arguments as for `vanilla`. Metrics: `pg_clipfrac`, `ppo_kl`, `ratio_clampfrac`.
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, (1.0, 4.0))

    def token_loss(rows: Rows) -> TokenLoss:
        log_ratio = rows.anchor - rows.old_log_prob
        ratio = clamp_log_ratio(log_ratio).exp()
        weight = ratio.clamp(1.0 - low, 1.0 + high)
        slope = -weight * rows.advantages
        metrics = rows.ratio_metrics(log_ratio)
        metrics["pg_clipfrac"] = rows.share(weight != ratio)
        return TokenLoss(slope * rows.log_prob.detach(), metrics, slope)

    return evaluate(token_loss, old_log_prob, log_prob, advantages, response_mask, **weighting)
