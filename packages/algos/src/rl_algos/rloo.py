"""Leave-one-out baseline (Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rl_algos.groups import GroupIndex, group_stats
from rl_algos.outcome import outcome
from rl_algos.registry import AdvantageEstimator, register_adv_est

if TYPE_CHECKING:
    from torch import Tensor


@register_adv_est(AdvantageEstimator.RLOO)
def compute_rloo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex
) -> tuple[Tensor, Tensor]:
    r"""Score minus the mean of the group's other rows.

        A_i = s_i - (1 / (n - 1)) sum over j != i of s_j = n / (n - 1) (s_i - mean(group))

    A constant group, and a group of one, gives exactly 0. A row without a selected token counts in no
    statistic.

    Args:
        token_level_rewards: floating `[B, T]`; a row's score is the sum over its selected tokens.
        response_mask: `[B, T]`, bool, int or float.
        index: `[B]` prompt ids.

    Returns:
        `(advantages, returns)`, twice the same tensor `[B, T]`, float32 or float64, 0 outside the mask.
    """
    with torch.no_grad():
        rows = outcome(token_level_rewards, response_mask)
        stats = group_stats(rows.scores, index, rows.counted)
        others = stats.count / (stats.count - 1).clamp(min=1)
        advantages = others[stats.codes] * (rows.scores - stats.mean[stats.codes])
        advantages = rows.to_tokens(torch.where(stats.informative, advantages, 0))
        return advantages, advantages
