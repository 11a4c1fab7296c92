"""Losses on the sequence's ratio: GSPO and LUSPO.

GSPO: Zheng et al. 2025, https://arxiv.org/abs/2507.18071. LUSPO: "Length-Unbiased Sequence Policy
Optimization: Revealing and Controlling Response Length Variation in RLVR", 2026.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from rl_algos.masking import select
from rl_algos.ppo import bounded_loss, clip_bounds
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import LossBatch, PolicyLossOutput, Rows, TokenLoss, evaluate

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


def sequence_log_ratio(rows: Rows) -> Tensor:
    """Row mean of the log-ratio at the anchor, plus the token's own move away from it, `[b, T]`; 0 if
    masked."""
    mean = rows.row_mean(rows.anchor - rows.old_log_prob)
    return select(mean + (rows.log_prob.detach() - rows.anchor), rows.mask)
