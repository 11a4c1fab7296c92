"""REINFORCE++ and its group-baseline form (Hu et al. 2025, https://arxiv.org/abs/2501.03262)."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.action_scan import Block, Scan, by_blocks, discounted_returns
from rl_algos.group_relative import group_relative
from rl_algos.groups import GroupIndex, GroupStats
from rl_algos.outcome import Outcome, whiten_rows
from rl_algos.registry import AdvantageEstimator, register_adv_est
from rl_algos.validation import check_mask, check_range, check_tokens, compute_dtype


@register_adv_est(AdvantageEstimator.REINFORCE_PLUS_PLUS)
def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, gamma: float = 1.0, whiten: bool = True
) -> tuple[Tensor, Tensor]:
    r"""Discounted return of each action, whitened over the batch.

        R_k = r_k + gamma R_{k+1},   A = (R - mean) / sqrt(var + 1e-8)

    k counts the row's selected tokens: returns pass over observation tokens without decay. Mean and variance
    (n - 1) are over all selected tokens; equal returns give exactly 0.

    Args:
        token_level_rewards: floating `[B, T]`; rewards outside the mask do not count.
        response_mask: `[B, T]`, bool, int or float.
        gamma: discount per action, from 0 to 1.
        whiten: False returns the raw returns as advantages.

    Returns:
        `(advantages, returns)` `[B, T]`, float32 (float64 for float64 rewards), 0 outside the mask.
    """
    mask = check_mask(response_mask, check_tokens(token_level_rewards=token_level_rewards))
    check_range("gamma", gamma, 0.0, 1.0)
    dtype = compute_dtype(token_level_rewards)
    scan = Scan.of(gamma, dtype, mask.device)

    def compute(block: Block, advantages: Tensor, returns: Tensor) -> Tensor:
        return discounted_returns(scan, token_level_rewards, block, out=returns)

    with torch.no_grad():
        return by_blocks(mask, compute, dtype, whiten)


@register_adv_est(AdvantageEstimator.REINFORCE_PLUS_PLUS_BASELINE)
def compute_reinforce_plus_plus_baseline_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex, whiten: bool = True
) -> tuple[Tensor, Tensor]:
    r"""Score minus its group's mean, spread over the row's tokens and whitened over the batch.

        A_i = s_i - mean(s in the group of i),   then (A - mean) / sqrt(var + 1e-8) over tokens

    Rows of constant groups and of groups of one enter the whitening with 0 and leave it with exactly 0; rows
    without a selected token count nowhere.

    `whiten=False` leaves out the second step; other arguments and result as for
    `compute_grpo_outcome_advantage`.
    """

    def relative(rows: Outcome, stats: GroupStats) -> Tensor:
        centred = torch.where(stats.informative, stats.relative(), 0)
        return whiten_rows(centred, rows.lengths) if whiten else centred

    return group_relative(token_level_rewards, response_mask, index, relative)


def compute_discounted_returns(
    token_level_rewards: Tensor, response_mask: Tensor, gamma: float = 1.0
) -> Tensor:
    """Return `R_k = r_k + gamma R_{k+1}` over each row's selected tokens, `[B, T]`, 0 outside the mask."""
    _, returns = compute_reinforce_plus_plus_outcome_advantage(
        token_level_rewards, response_mask, gamma, whiten=False
    )
    return returns
