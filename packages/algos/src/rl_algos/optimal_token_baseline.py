"""Optimal token baseline: a baseline for each step, weighted by the energy of the path so far.

Single-turn form by column, multi-turn form by the number of the action ("The Optimal Token Baseline", 2026).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.groups import GroupIndex, group_codes
from rl_algos.masking import select
from rl_algos.registry import AdvantageEstimator, register_adv_est
from rl_algos.validation import check_finite_rows, check_mask, check_tokens, compute_dtype


@register_adv_est(AdvantageEstimator.OPTIMAL_TOKEN_BASELINE, inputs=("rollout_is_weights",))
def compute_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
) -> tuple[Tensor, Tensor]:
    r"""Reward to go minus the optimal baseline of its column.

        A_t = G_t - B_t,   B_t = sum over the group of W_t G_t / (sum over the group of W_t + epsilon)
        W_t = sum over t' <= t of rho_t'^2 (1 - 2 pi_t' + sum over the vocabulary of pi^2)

    Sums run over the group's rows that have a token in column t. A group whose rewards to go are all equal,
    and a group of one, gives exactly 0, as does a column in which they are equal.

    Args:
        token_level_rewards: floating `[B, T]`; rewards outside the mask do not count.
        response_mask: `[B, T]`, bool, int or float.
        index: `[B]` prompt ids.
        old_log_probs: floating `[B, T]`: log pi of the sampled tokens.
        sum_pi_squared: floating `[B, T]`: the vocabulary's sum of squared probabilities.
        rollout_is_weights: floating `[B, T]`, rho; 1 by default.
        handle_zero_tail: where the longest row of a group goes on alone behind the end of the second longest,
            its baseline is 0 (else it is its own reward to go).
        epsilon: keeps the quotient finite.

    Returns:
        `(advantages, returns)` `[B, T]`, float32 or float64, 0 outside the mask; returns are the rewards to
        go.
    """
    shape = check_tokens(
        token_level_rewards=token_level_rewards,
        old_log_probs=old_log_probs,
        sum_pi_squared=sum_pi_squared,
        rollout_is_weights=rollout_is_weights,
    )
    mask = check_mask(response_mask, shape)
    with torch.no_grad():
        pi = select(old_log_probs, mask).double().exp()
        energy = 1.0 - 2.0 * pi + select(sum_pi_squared, mask).double()
        if rollout_is_weights is not None:
            energy = energy * select(rollout_is_weights, mask).double().square()
        path = select(energy, mask).cumsum(dim=1)
        returns = select(select(token_level_rewards, mask).double().flip(1).cumsum(dim=1).flip(1), mask)
        check_finite_rows("a reward to go", returns, mask.any(dim=1))
        check_finite_rows("the energy of a token", path, mask.any(dim=1))
        codes, groups = group_codes(index, mask.shape[0])
        baselines = _Baselines(returns, path, mask, codes.to(mask.device), groups)
        dtype = compute_dtype(token_level_rewards)
        advantages = select(returns - baselines.of(handle_zero_tail, epsilon), mask).to(dtype)
        check_finite_rows("an advantage", advantages, mask.any(dim=1))
        return advantages, returns.to(dtype)


@register_adv_est(AdvantageEstimator.TIR_OPTIMAL_TOKEN_BASELINE, inputs=("rollout_is_weights",))
def compute_multi_turn_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
) -> tuple[Tensor, Tensor]:
    """The same with rows aligned by action: the k-th selected token of a row meets the k-th of the others.

    Arguments, equation and result as in `compute_optimal_token_baseline_advantage`; observation tokens of
    tools or environments do not shift the comparison.
    """
    mask = check_mask(response_mask, check_tokens(token_level_rewards=token_level_rewards))
    steps = torch.arange(mask.shape[1], device=mask.device) < mask.sum(dim=1, keepdim=True)
    with torch.no_grad():
        by_action = compute_optimal_token_baseline_advantage(
            _move(token_level_rewards, mask, steps),
            steps,
            index,
            _move(old_log_probs, mask, steps),
            _move(sum_pi_squared, mask, steps),
            None if rollout_is_weights is None else _move(rollout_is_weights, mask, steps),
            handle_zero_tail,
            epsilon,
        )
        advantages, returns = (_move(x, steps, mask) for x in by_action)
        return advantages, returns


def _move(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Move the entries of `x` selected by `source` to the places of `target`, row by row; 0 elsewhere."""
    check_tokens(source.shape, x=x)
    return torch.zeros_like(x).masked_scatter_(target, x.masked_select(source))


class _Baselines:
    """Baselines of rows aligned by column; `returns` G and `path` W float64 `[B, T]`, `mask` bool, `codes`
    `[B]`."""

    def __init__(self, returns: Tensor, path: Tensor, mask: Tensor, codes: Tensor, groups: int) -> None:
        self.returns, self.path, self.mask, self.codes, self.groups = returns, path, mask, codes, groups

    def of(self, handle_zero_tail: bool, epsilon: float) -> Tensor:
        """Baseline `[B, T]`; the row's own return where the advantage is to be exactly 0."""
        weight = select(self.path, self.mask)
        quotient = self._sum(weight * self.returns) / (self._sum(weight) + epsilon)
        baseline = quotient[self.codes]
        high, low = self._extreme("amax"), self._extreme("amin")
        peers = self._sum(self.mask.double())[self.codes] > 1
        equal = peers & (high == low)[self.codes]
        baseline = torch.where(equal, self.returns, baseline)
        if handle_zero_tail:
            baseline = torch.where(self._tail(), 0.0, baseline)
        informative = (high.amax(dim=1) > low.amin(dim=1)) & (self._rows_per_group() > 1)
        return torch.where(informative[self.codes][:, None], baseline, self.returns)

    def _sum(self, x: Tensor) -> Tensor:
        return x.new_zeros((self.groups, x.shape[1])).index_add_(0, self.codes, x)

    def _extreme(self, reduce: str) -> Tensor:
        nothing = float("-inf") if reduce == "amax" else float("inf")
        values = torch.where(self.mask, self.returns, nothing)
        out = values.new_full((self.groups, values.shape[1]), nothing)
        return out.index_reduce_(0, self.codes, values, reduce)

    def _rows_per_group(self) -> Tensor:
        present = self.mask.any(dim=1).double()
        return present.new_zeros(self.groups).index_add_(0, self.codes, present)

    def _tail(self) -> Tensor:
        """Tokens of a group's only longest row behind the end of the second longest."""
        place = torch.arange(1, self.mask.shape[1] + 1, device=self.mask.device)
        ends = (self.mask * place).amax(dim=1)
        longest = ends.new_zeros(self.groups).scatter_reduce_(0, self.codes, ends, "amax")
        is_longest = ends == longest[self.codes]
        alone = ends.new_zeros(self.groups).index_add_(0, self.codes, is_longest.to(ends.dtype)) == 1
        second = ends.new_zeros(self.groups).scatter_reduce_(
            0, self.codes, torch.where(is_longest, 0, ends), "amax"
        )
        return (is_longest & alone[self.codes])[:, None] & (place > second[self.codes][:, None])
