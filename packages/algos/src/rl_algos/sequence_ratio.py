"""Losses on the sequence's ratio: GSPO, LUSPO and GMPO.

GSPO: Zheng et al. 2025, https://arxiv.org/abs/2507.18071. LUSPO: "Length-Unbiased Sequence Policy
Optimization: Revealing and Controlling Response Length Variation in RLVR", 2026. GMPO:
https://arxiv.org/abs/2507.20673.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from rl_algos.masking import as_number, select
from rl_algos.ppo import bounded_loss, clip_bounds
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import LossBatch, PolicyLossOutput, Rows, TokenLoss, clamp_log_ratio, evaluate

PAPER_BOUNDS = (3e-4, 4e-4)


@register_policy_loss("gspo", anchored=True, sequence_level=True)
def compute_policy_loss_gspo(
    *,
    clip_ratio: float | None = None,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""Clipped surrogate on the sequence's ratio, in its token form.

        s = exp(mean over the row's tokens of log_prob - old_log_prob)
        s_t = sg[s] pi_t / sg[pi_t],   loss_t = max(-A s_t, -A clip(s_t, 1 - low, 1 + high))

    The log-ratio of s is clamped to plus or minus 20. The paper's objective is the aggregation
    `seq-mean-token-mean`; the loss follows whatever weights it is given. Bounds are three orders narrower
    than PPO's, because s is a geometric mean.

    Arguments as for `vanilla`, without the dual clip. Metrics: `pg_clipfrac`, `pg_clipfrac_lower` (0),
    `ppo_kl`, `ratio_clampfrac` (share of tokens).
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, PAPER_BOUNDS)

    def token_loss(rows: Rows) -> TokenLoss:
        return bounded_loss(rows, sequence_log_ratio(rows), low, high)

    return evaluate(token_loss, **batch)


@register_policy_loss("luspo", anchored=True, sequence_level=True)
def compute_policy_loss_luspo(
    *,
    clip_ratio: float | None = None,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""GSPO's loss times the row's length, which removes its bias towards short responses.

        loss_t = len max(-A s_t, -A clip(s_t, 1 - low, 1 + high))

    The paper's objective is `seq-mean-token-mean` of this (equal to `seq-mean-token-sum` of GSPO's loss).
    Arguments and metrics as for `gspo`.
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, PAPER_BOUNDS)

    def token_loss(rows: Rows) -> TokenLoss:
        result = bounded_loss(rows, sequence_log_ratio(rows), low, high)
        assert result.gradient is not None
        return TokenLoss(result.loss * rows.lengths, result.metrics, result.gradient * rows.lengths)

    return evaluate(token_loss, **batch)


@register_policy_loss("geo_mean", sequence_level=True)
def compute_policy_loss_geo_mean(
    *,
    clip_ratio: float | None = None,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""GMPO: row loss on the geometric mean of the ratios, each clipped in log space against its advantage.

        l_t = log-ratio, kept on the pessimistic side of [-low, high]
        loss_t = -mean(A over the row) exp(mean over the row of l)

    Every token of a row carries the row's loss, so the paper's objective is `seq-mean-token-mean`; the loss
    follows whatever weights it is given. Bounds are on the log-ratio, 0.4 if none is given. Sequence weights
    from the rollout correction are given as equal `rollout_is_weights` on the row's tokens. Other arguments
    as for `vanilla`. Metrics: `pg_clipfrac` (A > 0), `pg_clipfrac_lower` (A < 0), `ppo_kl`,
    `ratio_clampfrac`.
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, (0.4, 0.4))

    def token_loss(rows: Rows) -> TokenLoss:
        raw = rows.log_ratio
        log_ratio = clamp_log_ratio(raw.detach())
        clipped = log_ratio.clamp(-low, high)
        sign = rows.advantages.sign()
        kept = sign * torch.minimum(sign * log_ratio, sign * clipped)
        # The gradient passes where the clip kept the log-ratio as it is.
        free = as_number((kept == raw.detach()) & (sign != 0), kept.dtype)
        kept = kept + free * (raw - raw.detach())
        loss = -rows.row_mean(rows.advantages) * rows.row_mean(kept).exp()
        metrics = rows.ratio_metrics(raw, log_ratio)
        outside = log_ratio != clipped
        metrics["pg_clipfrac"] = rows.share(outside & (sign > 0))
        metrics["pg_clipfrac_lower"] = rows.share(outside & (sign < 0))
        return TokenLoss(loss.expand_as(log_ratio), metrics)

    return evaluate(token_loss, **batch)


def sequence_log_ratio(rows: Rows) -> Tensor:
    """Row mean of the log-ratio at the anchor, plus the token's own move away from it, `[b, T]`; 0 if
    masked."""
    mean = rows.row_mean(rows.anchor_ratio)
    return select(mean + (rows.log_prob.detach() - rows.anchor), rows.mask)
