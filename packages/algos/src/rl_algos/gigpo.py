"""GiGPO: groups of trajectories and, within them, of steps from one state
(https://arxiv.org/abs/2505.10978)."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.groups import GroupIndex, GroupStats, group_codes, group_stats, pair_codes
from rl_algos.outcome import Outcome, outcome
from rl_algos.registry import AdvantageEstimator, register_adv_est
from rl_algos.validation import check_rows


@register_adv_est(AdvantageEstimator.GIGPO)
def compute_gigpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    trajectory_index: GroupIndex,
    anchor_state: GroupIndex,
    step_returns: Tensor,
    step_advantage_w: float = 1.0,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    r"""Episode advantage plus step advantage; here a row is one step (one response) of a trajectory.

        A = A_episode + w A_step
        A_episode = (S - mean(S over the prompt's trajectories)) / (std + epsilon)
        A_step    = (R - mean(R over the prompt's steps from this state)) / (std + epsilon)

    S is the trajectory's score: the mean of its rows' scores (each row carries the episode's reward). A
    trajectory counts once, however many steps it has. Constant groups and groups of one give exactly 0, in
    either part.

    Args:
        token_level_rewards, response_mask, index: as for `compute_grpo_outcome_advantage`.
        trajectory_index: `[B]` trajectory ids; distinct between prompts.
        anchor_state: `[B]` ids of the state the step was taken from.
        step_returns: floating `[B]`: discounted return from this step.
        step_advantage_w: w.
        epsilon, norm_adv_by_std_in_grpo: of the (n - 1) standard deviation, as for GRPO.

    Returns:
        `(advantages, returns)`, twice the same tensor `[B, T]`, float32 or float64, 0 outside the mask.
    """
    with torch.no_grad():
        rows = outcome(token_level_rewards, response_mask)
        size = rows.scores.shape[0]
        check_rows("step_returns", step_returns, size)
        prompts = group_codes(index, size)[0].to(rows.scores.device)
        states = group_codes(anchor_state, size)[0].to(rows.scores.device)
        steps = group_stats(step_returns, pair_codes(prompts, states)[0], rows.counted)
        divisor = epsilon if norm_adv_by_std_in_grpo else None
        episode = _episode(rows, prompts, trajectory_index, divisor)
        advantages = rows.to_tokens(episode + step_advantage_w * _relative(steps, divisor))
        return advantages, advantages


def _episode(rows: Outcome, prompts: Tensor, trajectory_index: GroupIndex, divisor: float | None) -> Tensor:
    own = group_stats(rows.scores, trajectory_index, rows.counted)
    # A trajectory whose rows agree has that score exactly; their mean would round.
    score = torch.where(own.high == own.low, own.high, own.mean)
    prompt = torch.zeros_like(own.count, dtype=torch.int64).index_copy_(0, own.codes, prompts)
    trajectories = group_stats(score, prompt, own.count > 0)
    return torch.where(rows.counted, _relative(trajectories, divisor)[own.codes], 0)


def _relative(stats: GroupStats, divisor: float | None) -> Tensor:
    return torch.where(stats.informative, stats.relative(divisor), 0)
