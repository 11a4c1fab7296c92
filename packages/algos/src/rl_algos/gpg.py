"""GPG: group policy gradient, advantage and loss (Chu et al. 2025, https://arxiv.org/abs/2504.02546)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import torch

from rl_algos.errors import OptionError
from rl_algos.groups import GroupIndex, group_stats
from rl_algos.outcome import outcome
from rl_algos.registry import AdvantageEstimator, register_adv_est, register_policy_loss
from rl_algos.token_loss import PolicyLossOutput, Rows, TokenLoss, Weighting, evaluate

if TYPE_CHECKING:
    from torch import Tensor


@register_adv_est(AdvantageEstimator.GPG)
def compute_gpg_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex, f_norm: float = 1.0
) -> tuple[Tensor, Tensor]:
    r"""Score minus the group's mean, scaled up for the groups that say nothing.

        A_i = alpha (s_i - mean(group)) / f_norm,   alpha = B / (B - M)

    B counts the rows with a selected token and M those among them whose group has no variance (also: groups
    of one), whose advantages are exactly 0. With no informative group all advantages are 0.

    Args:
        token_level_rewards: floating `[B, T]`; a row's score is the sum over its selected tokens.
        response_mask: `[B, T]`, bool, int or float.
        index: `[B]` prompt ids.
        f_norm: positive divisor.

    Returns:
        `(advantages, returns)`, twice the same tensor `[B, T]`, float32 or float64, 0 outside the mask.
    """
    if not f_norm > 0:
        raise OptionError(f"f_norm is {f_norm}, expected a positive number")
    with torch.no_grad():
        rows = outcome(token_level_rewards, response_mask)
        stats = group_stats(rows.scores, index, rows.counted)
        alpha = rows.counted.sum().double() / stats.informative.sum().clamp(min=1)
        relative = alpha * (rows.scores - stats.mean[stats.codes]) / f_norm
        advantages = rows.to_tokens(torch.where(stats.informative, relative, 0))
        return advantages, advantages


@register_policy_loss("gpg")
def compute_policy_loss_gpg(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    **weighting: Unpack[Weighting],
) -> PolicyLossOutput:
    """GPG's loss, `-A log_prob`: the policy gradient without ratio or clip. Arguments as for `vanilla`.

    `old_log_prob` is not read, and there are no metrics: `reinforce` is the same loss with them.
    """

    def token_loss(rows: Rows) -> TokenLoss:
        slope = -rows.advantages
        return TokenLoss(slope * rows.log_prob.detach(), gradient=slope)

    return evaluate(token_loss, old_log_prob, log_prob, advantages, response_mask, **weighting)
