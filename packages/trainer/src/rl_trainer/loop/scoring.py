"""What responses earn: by the rule, computed beside the rows, and by a reward model."""

from __future__ import annotations

import math

import numpy as np
import torch

from rl_algos import overlong_penalty
from rl_controller import WorkerGroup
from rl_protocol import DataProto
from rl_rollout import greedy_sampling

from ..config.tree import PPOConfig
from ..errors import TrainingError
from ..reward.manager import RewardResult
from .metrics import Metrics
from .rollouts import Rollouts
from .step_batch import LOG_PROB_COLUMNS, StepBatch, tensors_of


class Scoring:
    """Asks the workers for scores; responses stay with them.

    Args:
        rule: the group of the run's reward functions.
        model: the reward model's group; None: there is none.
    """

    def __init__(self, rule: WorkerGroup, model: WorkerGroup | None) -> None:
        self.rule, self.model = rule, model

    def of(self, batch: StepBatch, validation: bool = False) -> tuple[torch.Tensor, RewardResult]:
        """What each row earns by rule and model together, `[B]` float32, and what the rule said of it.

        A sum that is not finite (a model's NaN, a rule's 1e308) is no value: NaN.
        """
        result = self.by_rule(batch, validation)
        scores = result.scores + self.by_model(batch)
        return scores.masked_fill(~scores.isfinite(), math.nan), result

    def by_rule(self, batch: StepBatch, validation: bool = False) -> RewardResult:
        """What the rule reward says of each row; of validation, what validation's says."""
        columns = ["responses", "response_mask", "response_lengths"]
        data = batch.to_workers(columns, {"validation": validation}, list(batch.local.non_tensor_batch))
        return RewardResult.from_batch(self.rule.compute_rule_reward(data))

    def by_model(self, batch: StepBatch) -> torch.Tensor:
        """The reward model's score of each row, `[B]`; 0 without one."""
        if self.model is None:
            return torch.zeros(len(batch))
        data = batch.to_workers(LOG_PROB_COLUMNS, {}, ["uid", "raw_prompt"])
        scored: DataProto = self.model.compute_rm_score(data)
        return tensors_of(scored)["rm_scores"].sum(1)


def without_value(scores: torch.Tensor, result: RewardResult, where: str) -> torch.Tensor:
    """Rows that got no value, `[B]` bool.

    Args:
        scores: `[B]`, NaN where there is none.
        result: counts what went wrong.
        where: the step, and where the workers write, for the message.

    Raises:
        TrainingError: no row has one: the step, and each one after it, would learn from nothing.
    """
    lost = scores.isnan()
    if len(lost) and bool(lost.all()):
        raise TrainingError(
            f"{where}: {told_lost(lost, result)}; mend reward.function, and run the same command again"
        )
    return lost


def told_lost(lost: torch.Tensor, result: RewardResult) -> str:
    """How many rows have no value and why, with the first failure's own words."""
    counts = ", ".join(f"{kind} {count}" for kind, count in result.failures.items() if count) or "NaN"
    first = f"; first: {result.first_failure}" if result.first_failure else ""
    return f"{int(lost.sum())} of {len(lost)} rows have no reward ({counts}{first})"


def overlong_penalties(config: PPOConfig, lengths: torch.Tensor) -> torch.Tensor:
    """DAPO's soft penalty of each response by its length, `[B]`, at most 0; 0 where it is off."""
    reward = config.reward
    if not reward.overlong_buffer_len:
        return torch.zeros(len(lengths))
    limit, buffer = config.data.max_response_length, reward.overlong_buffer_len
    return overlong_penalty(lengths, limit, buffer, reward.overlong_penalty_factor)


def greedy_scores(batch: StepBatch, rollouts: Rollouts, scoring: Scoring) -> tuple[torch.Tensor, Metrics]:
    """ReMax's baseline: the score of the greedy response to each row's prompt, `[B]`.

    Returns:
        The scores, and what the engines measured.
    """
    wanted = set(batch.uids)
    prompts = batch.prompts[np.array([uid in wanted for uid in batch.prompts.non_tensor_batch["uid"]])]
    greedy, measured = rollouts.sample(prompts, [greedy_sampling()])
    scores, _ = scoring.of(greedy)
    score_of = dict(zip(greedy.uids, torch.nan_to_num(scores).tolist(), strict=True))
    return torch.tensor([score_of[uid] for uid in batch.uids]), measured
