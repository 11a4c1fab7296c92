"""Advantages relative to the other samples of the same prompt.

Every function takes rewards `[B, T]`, whose sum over a row's selected tokens is the row's score s, and one
prompt id per row; equal ids make a group. A constant group, and a group of one, gives exactly 0 (it says
nothing about which sample is better); a row without a selected token counts in no statistic.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl_algos.errors import OptionError
from rl_algos.groups import GroupIndex, GroupStats, group_stats
from rl_algos.outcome import Outcome, outcome
from rl_algos.registry import AdvantageEstimator, register_adv_est


def group_relative(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    relative: Callable[[Outcome, GroupStats], Tensor],
) -> tuple[Tensor, Tensor]:
    """Spread `relative(rows, stats)` `[B]` over the tokens of the rows of informative groups; 0 elsewhere."""
    with torch.no_grad():
        rows = outcome(token_level_rewards, response_mask)
        stats = group_stats(rows.scores, index, rows.counted)
        advantages = rows.to_tokens(torch.where(stats.informative, relative(rows, stats), 0))
        return advantages, advantages


@register_adv_est(AdvantageEstimator.GRPO)
def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    r"""GRPO: score relative to the group (Shao et al. 2024, https://arxiv.org/abs/2402.03300).

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
    divisor = epsilon if norm_adv_by_std_in_grpo else None
    return group_relative(
        token_level_rewards, response_mask, index, lambda rows, stats: stats.relative(divisor)
    )


@register_adv_est(AdvantageEstimator.DR_GRPO)
def compute_dr_grpo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex
) -> tuple[Tensor, Tensor]:
    """Dr.GRPO: score minus the group's mean (Liu et al. 2025, https://arxiv.org/abs/2503.20783).

    Arguments and result as for `compute_grpo_outcome_advantage`.
    """
    return group_relative(token_level_rewards, response_mask, index, lambda rows, stats: stats.relative())


@register_adv_est(AdvantageEstimator.RLOO)
def compute_rloo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex
) -> tuple[Tensor, Tensor]:
    r"""Score minus the mean of the group's other rows (Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740).

        A_i = s_i - (1 / (n - 1)) sum over j != i of s_j = n / (n - 1) (s_i - mean(group))

    Arguments, result and degenerate groups as for `compute_grpo_outcome_advantage`.
    """

    def relative(rows: Outcome, stats: GroupStats) -> Tensor:
        return (stats.count / (stats.count - 1).clamp(min=1))[stats.codes] * stats.relative()

    return group_relative(token_level_rewards, response_mask, index, relative)


@register_adv_est(AdvantageEstimator.OPO)
def compute_opo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex
) -> tuple[Tensor, Tensor]:
    r"""OPO: score minus the group's mean weighted by length (https://arxiv.org/abs/2505.23585).

        A_i = s_i - (sum over j of len_j s_j) / (sum over j of len_j)

    Arguments, result and degenerate groups as for `compute_grpo_outcome_advantage`.
    """

    def relative(rows: Outcome, stats: GroupStats) -> Tensor:
        baseline = stats.sum_of(rows.lengths * rows.scores) / stats.sum_of(rows.lengths).clamp(min=1)
        return rows.scores - baseline[stats.codes]

    return group_relative(token_level_rewards, response_mask, index, relative)


@register_adv_est(AdvantageEstimator.GRPO_PASSK)
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    r"""Pass@k: a group's best row gets its lead, every other row 0 (https://arxiv.org/abs/2503.19595).

        A_best = (s_(1) - s_(2)) / (std(group) + epsilon)

    A tie for the best place gives 0. Arguments, result and degenerate groups as for
    `compute_grpo_outcome_advantage`.
    """

    def relative(rows: Outcome, stats: GroupStats) -> Tensor:
        best = rows.counted & (rows.scores == stats.high[stats.codes])
        alone = stats.sum_of(best)[stats.codes] == 1
        others = torch.where(rows.counted & ~best, rows.scores, float("-inf"))
        second = torch.full_like(stats.high, float("-inf"))
        second = second.scatter_reduce_(0, stats.codes, others, "amax")
        lead = rows.scores - second[stats.codes]
        if norm_adv_by_std_in_grpo:
            lead = lead / (stats.std[stats.codes] + epsilon)
        return torch.where(best & alone, lead, 0)

    return group_relative(token_level_rewards, response_mask, index, relative)


@register_adv_est(AdvantageEstimator.MAXRL, non_negative_scores=True)
def compute_maxrl_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor]:
    r"""MaxRL: prompts count by the inverse of their success rate (Tajwar et al. 2026,
    https://arxiv.org/abs/2602.02710).

        A_i = (s_i - mean(group)) / (mean(group) + epsilon)

    For scores 0 and 1 this follows the gradient of log p(success), truncated at the group's size, instead of
    p(success). A negative score raises `OptionError`: put no KL into the reward. Other arguments, result and
    degenerate groups as for `compute_grpo_outcome_advantage`.
    """

    def relative(rows: Outcome, stats: GroupStats) -> Tensor:
        if bool((rows.scores < 0).any()):
            raise OptionError(
                f"a score is negative ({rows.scores.min().item()}); MaxRL divides by the group's "
                "mean and takes scores >= 0 only: shift them, or use another estimator"
            )
        return stats.relative() / (stats.mean[stats.codes] + epsilon)

    return group_relative(token_level_rewards, response_mask, index, relative)


@register_adv_est(AdvantageEstimator.GPG)
def compute_gpg_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex, f_norm: float = 1.0
) -> tuple[Tensor, Tensor]:
    r"""GPG: centred, and scaled up for the groups that say nothing (Chu et al. 2025,
    https://arxiv.org/abs/2504.02546).

        A_i = alpha (s_i - mean(group)) / f_norm,   alpha = B / (B - M)

    B counts the rows with a selected token and M those among them whose group has no variance (also: groups
    of one). With no informative group all advantages are 0. `f_norm` is a positive divisor; other arguments
    and result as for `compute_grpo_outcome_advantage`.
    """
    if not f_norm > 0:
        raise OptionError(f"f_norm is {f_norm}, expected a positive number")

    def relative(rows: Outcome, stats: GroupStats) -> Tensor:
        alpha = rows.counted.sum().double() / stats.informative.sum().clamp(min=1)
        return alpha * stats.relative() / f_norm

    return group_relative(token_level_rewards, response_mask, index, relative)
