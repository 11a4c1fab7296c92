"""GDPO: reward components normalised apart before they are added (https://arxiv.org/abs/2601.05242)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_algos.errors import ShapeError
from rl_algos.groups import GroupIndex, group_stats
from rl_algos.outcome import outcome, whiten_rows
from rl_algos.registry import AdvantageEstimator, register_adv_est
from rl_algos.validation import check_floating


@register_adv_est(AdvantageEstimator.GDPO, inputs=("reward_components",))
def compute_gdpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    reward_components: Tensor | None = None,
    reward_weights: Sequence[float] | None = None,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    r"""GRPO per reward component, weighted, added, and whitened over the batch's tokens.

        A_i = whiten(sum over k of w_k (s_ik - mean_k(group)) / (std_k(group) + epsilon))

    A dominant component cannot drown the others. A component that is constant in a group adds exactly 0
    there; a row for which all are constant, and a group of one, has exactly 0 in the end too.

    Args:
        token_level_rewards: floating `[B, T]`; its row sums are the only component if none are given.
        response_mask, index: as for `compute_grpo_outcome_advantage`.
        reward_components: floating `[B, K]`, one score per row and component.
        reward_weights: K weights; all 1 by default.
        epsilon, norm_adv_by_std_in_grpo: of the (n - 1) standard deviation, as for GRPO.

    Returns:
        `(advantages, returns)`, twice the same tensor `[B, T]`, float32 or float64, 0 outside the mask.
    """
    with torch.no_grad():
        rows = outcome(token_level_rewards, response_mask)
        components = _components(rows.scores, reward_components)
        weights = [1.0] * components.shape[1] if reward_weights is None else list(reward_weights)
        if len(weights) != components.shape[1]:
            raise ShapeError(
                f"reward_weights has {len(weights)} entries for {components.shape[1]} components"
            )
        total = torch.zeros_like(rows.scores)
        informative = torch.zeros_like(rows.counted)
        for weight, scores in zip(weights, components.unbind(dim=1), strict=True):
            stats = group_stats(scores, index, rows.counted)
            relative = stats.relative(epsilon if norm_adv_by_std_in_grpo else None)
            total += weight * torch.where(stats.informative, relative, 0)
            informative |= stats.informative
        advantages = rows.to_tokens(torch.where(informative, whiten_rows(total, rows.lengths), 0))
        return advantages, advantages


def _components(scores: Tensor, reward_components: Tensor | None) -> Tensor:
    if reward_components is None:
        return scores[:, None]
    check_floating("reward_components", reward_components)
    if reward_components.dim() != 2 or reward_components.shape[0] != scores.shape[0]:
        raise ShapeError(
            f"reward_components has shape {tuple(reward_components.shape)}, expected ({scores.shape[0]}, K)"
        )
    return reward_components
