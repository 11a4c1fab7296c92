"""GRPO's group-relative advantage, with and without the standard deviation.

GRPO: Shao et al. 2024, https://arxiv.org/abs/2402.03300. Dr.GRPO: Liu et al. 2025,
https://arxiv.org/abs/2503.20783.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rl_algos.groups import GroupIndex, group_stats
from rl_algos.outcome import outcome
from rl_algos.registry import AdvantageEstimator, register_adv_est

if TYPE_CHECKING:
    from torch import Tensor


@register_adv_est(AdvantageEstimator.GRPO)
def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    r"""Score relative to the row's group.

        A_i = (s_i - mean(group)) / (std(group) + epsilon)      GRPO
        A_i =  s_i - mean(group)                                Dr.GRPO (`norm_adv_by_std_in_grpo=False`)

    The standard deviation is unbiased (n - 1). A constant group, and a group of one, gives exactly 0. A row
    without a selected token counts in no statistic.

    Args:
        token_level_rewards: floating `[B, T]`; a row's score is the sum over its selected tokens.
        response_mask: `[B, T]`, bool, int or float.
        index: `[B]` prompt ids: a tensor, a list or a numpy array.
        epsilon: added to the standard deviation.
        norm_adv_by_std_in_grpo: divide by it.

    Returns:
        `(advantages, returns)`, twice the same tensor `[B, T]`, float32 (float64 for float64 rewards), 0
        outside the mask.
    """
    with torch.no_grad():
        rows = outcome(token_level_rewards, response_mask)
        stats = group_stats(rows.scores, index, rows.counted)
        relative = rows.scores - stats.mean[stats.codes]
        if norm_adv_by_std_in_grpo:
            relative = relative / (stats.std[stats.codes] + epsilon)
        advantages = rows.to_tokens(torch.where(stats.informative, relative, 0))
        return advantages, advantages


@register_adv_est(AdvantageEstimator.DR_GRPO)
def compute_dr_grpo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex
) -> tuple[Tensor, Tensor]:
    """`compute_grpo_outcome_advantage` without the standard deviation: score minus the group's mean."""
    return compute_grpo_outcome_advantage(
        token_level_rewards, response_mask, index, norm_adv_by_std_in_grpo=False
    )
