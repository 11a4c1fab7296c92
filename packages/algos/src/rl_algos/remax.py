"""ReMax: the greedy response's reward as baseline (Li et al. 2024, https://arxiv.org/abs/2310.10505)."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.action_scan import Block, Scan, by_blocks, discounted_returns
from rl_algos.registry import AdvantageEstimator, register_adv_est
from rl_algos.validation import check_mask, check_rows, check_tokens, compute_dtype


@register_adv_est(AdvantageEstimator.REMAX)
def compute_remax_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, reward_baselines: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Reward to go minus the row's baseline.

        A_t = sum over t' >= t of r_t' - b

    Args:
        token_level_rewards: floating `[B, T]`; rewards outside the mask do not count.
        response_mask: `[B, T]`, bool, int or float.
        reward_baselines: floating `[B]`: the reward of the greedy response to the row's prompt.

    Returns:
        `(advantages, returns)` `[B, T]`, float32 or float64, 0 outside the mask; returns are the rewards to
        go.
    """
    mask = check_mask(response_mask, check_tokens(token_level_rewards=token_level_rewards))
    check_rows("reward_baselines", reward_baselines, mask.shape[0])

    dtype = compute_dtype(token_level_rewards)
    scan = Scan.of(1.0, dtype, mask.device)

    def compute(block: Block, advantages: Tensor, returns: Tensor) -> Tensor:
        sums = discounted_returns(scan, token_level_rewards, block, out=returns)
        baselines = reward_baselines[block.part, None].to(dtype)
        return torch.sub(sums, torch.where(block.mask, baselines, 0), out=advantages)

    with torch.no_grad():
        return by_blocks(mask, compute, dtype, whiten=False)
