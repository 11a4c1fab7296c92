"""REINFORCE (Williams 1992): the plain policy gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import PolicyLossOutput, Rows, TokenLoss, Weighting, evaluate

if TYPE_CHECKING:
    from torch import Tensor


@register_policy_loss("reinforce")
def compute_policy_loss_reinforce(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    **weighting: Unpack[Weighting],
) -> PolicyLossOutput:
    """`-A log_prob`; pass `rollout_is_weights` for samples of another policy.

    Arguments as for `vanilla`; `old_log_prob` serves the metrics `ppo_kl` and `ratio_clampfrac` only.
    """
    return evaluate(log_prob_loss, old_log_prob, log_prob, advantages, response_mask, **weighting)


def log_prob_loss(rows: Rows) -> TokenLoss:
    """Per-token `-A log_prob`, gradient `-A`, with the metrics of the ratio."""
    metrics = rows.ratio_metrics(rows.log_ratio, clamped=False)
    return TokenLoss(-rows.advantages * rows.log_prob.detach(), metrics, -rows.advantages)
