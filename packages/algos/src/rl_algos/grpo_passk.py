"""Pass@k advantage: only a group's best row learns (https://arxiv.org/abs/2503.19595)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rl_algos.groups import GroupIndex, group_stats
from rl_algos.outcome import outcome
from rl_algos.registry import AdvantageEstimator, register_adv_est

if TYPE_CHECKING:
    from torch import Tensor


@register_adv_est(AdvantageEstimator.GRPO_PASSK)
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    r"""The best row of a group gets its lead over the second best, every other row 0.

        A_best = (s_(1) - s_(2)) / (std(group) + epsilon)

    A tie for the best place gives 0, as does a group of one. Rows without a selected token do not take part.

    Args:
        token_level_rewards: floating `[B, T]`; a row's score is the sum over its selected tokens.
        response_mask: `[B, T]`, bool, int or float.
        index: `[B]` prompt ids.
        epsilon: added to the (n - 1) standard deviation.
        norm_adv_by_std_in_grpo: divide by it.

    Returns:
        `(advantages, returns)`, twice the same tensor `[B, T]`, float32 or float64, 0 outside the mask.
    """
    with torch.no_grad():
        rows = outcome(token_level_rewards, response_mask)
        stats = group_stats(rows.scores, index, rows.counted)
        best = rows.counted & (rows.scores == stats.high[stats.codes])
        unique = stats.sum_of(best)[stats.codes] == 1
        others = torch.where(rows.counted & ~best, rows.scores, float("-inf"))
        second = torch.full_like(stats.high, float("-inf"))
        second = second.scatter_reduce_(0, stats.codes, others, "amax")
        lead = rows.scores - second[stats.codes]
        if norm_adv_by_std_in_grpo:
            lead = lead / (stats.std[stats.codes] + epsilon)
        advantages = rows.to_tokens(torch.where(best & unique & stats.informative, lead, 0))
        return advantages, advantages
