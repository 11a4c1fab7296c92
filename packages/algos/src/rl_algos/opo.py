"""OPO: the length-weighted baseline that is optimal on policy (https://arxiv.org/abs/2505.23585)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rl_algos.groups import GroupIndex, group_stats
from rl_algos.outcome import outcome
from rl_algos.registry import AdvantageEstimator, register_adv_est

if TYPE_CHECKING:
    from torch import Tensor


@register_adv_est(AdvantageEstimator.OPO)
def compute_opo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex
) -> tuple[Tensor, Tensor]:
    r"""Score minus the group's mean weighted by length.

        A_i = s_i - (sum over j of len_j s_j) / (sum over j of len_j)

    A constant group, and a group of one, gives exactly 0. Rows without a selected token have length 0.

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
        baseline = stats.sum_of(rows.lengths * rows.scores) / stats.sum_of(rows.lengths).clamp(min=1)
        relative = rows.scores - baseline[stats.codes]
        advantages = rows.to_tokens(torch.where(stats.informative, relative, 0))
        return advantages, advantages
