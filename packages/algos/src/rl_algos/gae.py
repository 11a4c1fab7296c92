"""Generalised advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438)."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.action_scan import Block, Scan, by_blocks
from rl_algos.registry import AdvantageEstimator, register_adv_est
from rl_algos.validation import check_mask, check_range, check_tokens, compute_dtype


@register_adv_est(AdvantageEstimator.GAE)
def compute_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    r"""GAE over a row's actions.

    With k counting the row's selected tokens only and v = 0 after the last one:

        delta_k = r_k + gamma v_{k+1} - v_k
        A_k = delta_k + gamma lam A_{k+1}
        returns_k = A_k + v_k  (before whitening)

    Observation and padding tokens are no steps: nothing decays over them and their values are never read.

    Args:
        token_level_rewards, values: floating `[B, T]`.
        response_mask: `[B, T]`; non-zero on tokens that the policy chose. Rewards elsewhere do not count.
        gamma, lam: discount and trace decay, from 0 to 1.
        whiten: subtract the mean over all selected tokens of the batch and divide by their standard deviation
            (n - 1; epsilon 1e-8 under the root). Equal advantages become 0.

    Returns:
        `(advantages, returns)` `[B, T]`, float32 (float64 if an input is), 0 outside the mask. Without any
        selected token both are 0.
    """
    shape = check_tokens(token_level_rewards=token_level_rewards, values=values)
    mask = check_mask(response_mask, shape)
    check_range("gamma", gamma, 0.0, 1.0)
    check_range("lam", lam, 0.0, 1.0)

    dtype = compute_dtype(token_level_rewards, values)

    scan = Scan.of(gamma * lam, dtype, mask.device)

    def compute(block: Block, advantages: Tensor, returns: Tensor) -> Tensor:
        reward, value = block.take(token_level_rewards), block.take(values)
        # With X = (1 - lam) v + lam (A + v) the two recurrences, next value and trace, are one:
        # X_k = (1 - lam) v_k + lam r_k + gamma lam X_{k+1},  A_k + v_k = r_k + gamma X_{k+1}.
        mixed = torch.lerp(value, reward, lam)
        scan.add_next(reward, mixed, block.keep, gamma, returns)
        return torch.addcmul(returns, value, block.keep, value=-1, out=advantages)

    with torch.no_grad():
        return by_blocks(mask, compute, dtype, whiten)
