"""MaxRL: maximum-likelihood reinforcement learning (Tajwar et al. 2026, https://arxiv.org/abs/2602.02710)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rl_algos.errors import OptionError
from rl_algos.groups import GroupIndex, group_stats
from rl_algos.outcome import outcome
from rl_algos.registry import AdvantageEstimator, register_adv_est

if TYPE_CHECKING:
    from torch import Tensor


@register_adv_est(AdvantageEstimator.MAXRL, non_negative_scores=True)
def compute_maxrl_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor]:
    r"""Score relative to the group's mean and divided by it: prompts count by the inverse of their success
    rate.

        A_i = (s_i - mean(group)) / (mean(group) + epsilon)

    For scores 0 and 1 this follows the gradient of log p(success), truncated at the group's size, instead of
    p(success). A constant group, and a group of one, gives exactly 0.

    Args:
        token_level_rewards: floating `[B, T]`; a row's score, the sum over its selected tokens, must not be
            negative (put no KL into the reward), else `OptionError`.
        response_mask: `[B, T]`, bool, int or float.
        index: `[B]` prompt ids.
        epsilon: added to the mean.

    Returns:
        `(advantages, returns)`, twice the same tensor `[B, T]`, float32 or float64, 0 outside the mask.
    """
    with torch.no_grad():
        rows = outcome(token_level_rewards, response_mask)
        if bool((rows.scores < 0).any()):
            raise OptionError(
                f"a score is negative ({rows.scores.min().item()}); MaxRL divides by the group's "
                "mean and takes scores >= 0 only: shift them, or use another estimator"
            )
        stats = group_stats(rows.scores, index, rows.counted)
        mean = stats.mean[stats.codes]
        relative = (rows.scores - mean) / (mean + epsilon)
        advantages = rows.to_tokens(torch.where(stats.informative, relative, 0))
        return advantages, advantages
