"""Losses for samples of an older policy, weighted by the sequence's ratio: TOPR and VESPO.

TOPR: Le Roux et al. 2025, https://arxiv.org/abs/2503.14286. VESPO: https://arxiv.org/abs/2602.10693.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import torch

from rl_algos.errors import OptionError
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import (
    PolicyLossOutput,
    Rows,
    TokenLoss,
    Weighting,
    choose,
    clamp_log_ratio,
    evaluate,
)

if TYPE_CHECKING:
    from torch import Tensor


@register_policy_loss("topr", anchored=True, sequence_level=True)
def compute_policy_loss_topr(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    positive_low: float = 1.0,
    positive_high: float = 1.0,
    negative_low: float = 0.0,
    negative_high: float = 1.0,
    **weighting: Unpack[Weighting],
) -> PolicyLossOutput:
    r"""Tapered off-policy REINFORCE: full weight for good samples, tapered for bad ones.

        loss = -sg[clip(R, low, high)] A log_prob,   R = exp(sum over the row of log_prob - old_log_prob)

    with one pair of bounds for A >= 0 and one for A < 0. The defaults are the paper's: good samples are
    imitated with weight 1, bad ones pushed away with at most their importance weight. Other arguments as for
    `vanilla`. Metrics: `pg_clipfrac` (tokens whose weight was clipped), `ppo_kl`, `ratio_clampfrac`.
    """
    if not (0 <= positive_low <= positive_high and 0 <= negative_low <= negative_high):
        raise OptionError("TOPR's bounds must satisfy 0 <= low <= high, for both signs")

    def token_loss(rows: Rows) -> TokenLoss:
        ratio = sequence_ratio_log(rows).exp()
        positive = rows.advantages >= 0
        good, bad = ratio.clamp(positive_low, positive_high), ratio.clamp(negative_low, negative_high)
        weight = torch.where(positive, good, bad)
        slope = -weight * rows.advantages
        metrics = rows.ratio_metrics(rows.anchor - rows.old_log_prob)
        metrics["pg_clipfrac"] = rows.share(weight != ratio)
        return TokenLoss(slope * rows.log_prob.detach(), metrics, slope)

    return evaluate(token_loss, old_log_prob, log_prob, advantages, response_mask, **weighting)


@register_policy_loss("vespo", anchored=True, sequence_level=True)
def compute_policy_loss_vespo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
    **weighting: Unpack[Weighting],
) -> PolicyLossOutput:
    r"""Policy gradient weighted by a gamma-shaped function of the sequence's ratio, 1 at ratio 1.

        loss = -sg[phi(W)] A log_prob,   phi(W) = W^k exp(lambda (1 - W)),   W = product of the row's ratios

    with (k, lambda) by the sign of A. Log-ratios are clamped to plus or minus 20, per token and in sum. Other
    arguments as for `vanilla`. Metrics: `weight_mean`, `ppo_kl`, `ratio_clampfrac`.
    """
    if min(k_pos, k_neg, lambda_pos, lambda_neg) < 0:
        raise OptionError("VESPO's k and lambda must not be negative")

    def token_loss(rows: Rows) -> TokenLoss:
        log_w = sequence_ratio_log(rows)
        positive = rows.advantages >= 0
        k = choose(positive, k_pos, k_neg, log_w)
        rate = choose(positive, lambda_pos, lambda_neg, log_w)
        weight = (k * log_w + rate * (1.0 - log_w.exp())).exp()
        slope = -weight * rows.advantages
        metrics = rows.ratio_metrics(rows.anchor - rows.old_log_prob)
        metrics["weight_mean"] = rows.mean(weight * rows.keep)
        return TokenLoss(slope * rows.log_prob.detach(), metrics, slope)

    return evaluate(token_loss, old_log_prob, log_prob, advantages, response_mask, **weighting)


def sequence_ratio_log(rows: Rows) -> Tensor:
    """Sum over the row of the log-ratio at the anchor, `[b, 1]`; clamped per token and in sum."""
    per_token = clamp_log_ratio(rows.anchor - rows.old_log_prob)
    return clamp_log_ratio(per_token.sum(dim=1, keepdim=True))
