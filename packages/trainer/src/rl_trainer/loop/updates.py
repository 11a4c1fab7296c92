"""Optimizer steps: a batch cut into global mini-batches, each row weighed, one worker call for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rl_algos import loss_weights
from rl_protocol import DataProto, DataProtoFuture
from rl_workers import balanced_order

from ..config.inputs import read_by_loss, uses_old_log_probs
from ..config.tree import PPOConfig
from .metrics import Metrics, reduce_metrics
from .step_batch import MODEL_COLUMNS, StepBatch


@dataclass(frozen=True)
class UpdatePlan:
    """How a model is updated on a batch.

    Attributes:
        prompts: prompts in one mini-batch.
        epochs: passes over the batch.
        loss_agg_mode: how token losses become one number (`rl_algos.loss_weights`).
        norm_constant: its constant, for the mode that needs one; 0: none.
        seed: entropy of the shuffle, e.g. (run seed, step).
        columns: what the update reads beside `response_mask` and `row_weights`.
        meta_info: goes along with each mini-batch.
        workers: ranks among which the rows of a mini-batch are balanced; 0: they keep their order.
    """

    prompts: int
    epochs: int
    loss_agg_mode: str
    norm_constant: int
    seed: tuple[int, ...]
    columns: Sequence[str]
    meta_info: Mapping[str, Any]
    workers: int = 0


def critic_plan(config: PPOConfig, step: int, workers: int) -> UpdatePlan:
    """How the critic is updated in a step."""
    critic = config.critic
    return UpdatePlan(
        critic.ppo_mini_batch_size,
        critic.ppo_epochs,
        critic.loss_agg_mode,
        0,
        (config.trainer.seed, step),
        columns=[*MODEL_COLUMNS, "values", "returns"],
        meta_info={},
        workers=workers,
    )


def actor_plan(config: PPOConfig, step: int, workers: int, weighed: bool) -> UpdatePlan:
    """How the policy is updated in a step.

    Args:
        config: the whole tree.
        step: decides the shuffle, with the run's seed.
        workers: ranks among which rows are balanced; 0: they keep their order.
        weighed: whether rows have `rollout_is_weights`.
    """
    actor = config.actor_rollout_ref.actor
    optional = {
        "old_log_probs": uses_old_log_probs(config),
        "ref_log_prob": actor.use_kl_loss,
        "rollout_is_weights": weighed,
        "selected": "selected" in read_by_loss(config),
    }
    chosen = [name for name, read in optional.items() if read]
    return UpdatePlan(
        actor.ppo_mini_batch_size,
        actor.ppo_epochs,
        actor.loss_agg_mode,
        actor.loss_scale_factor,
        (config.trainer.seed, step),
        columns=[*MODEL_COLUMNS, "rollout_log_probs", "advantages", *chosen],
        meta_info={"temperature": config.actor_rollout_ref.rollout.temperature},
        workers=workers,
    )


def update_in_mini_batches(
    batch: StepBatch,
    method: Callable[[DataProtoFuture], DataProto],
    plan: UpdatePlan,
    prepare: Callable[[StepBatch], None] = lambda part: None,
) -> Metrics:
    """Call `method` (one optimizer step) on each mini-batch; gives the metrics of all calls, reduced.

    `prepare` is called on each mini-batch before its update, to add columns.
    """
    collected: dict[str, list[float]] = {}
    for rows in mini_batch_rows(batch.uids, plan.prompts, plan.epochs, plan.seed):
        whole = len(rows) == len(batch)  # nothing moves: each worker reads the piece that it holds
        part = replace(batch) if whole else balanced(batch.rows(rows), plan.workers)
        prepare(part)
        weights = loss_weights(
            part.action_mask,
            plan.loss_agg_mode,
            norm_constant=plan.norm_constant or None,
            prompt_index=part.uids if plan.loss_agg_mode == "prompt-mean" else None,
        )
        part.put(row_weights=weights)
        data = part.to_workers(["response_mask", "row_weights", *plan.columns], plan.meta_info)
        # One entry per rank, all equal: workers reduce over ranks themselves.
        for key, values in method(data).meta_info["metrics"].items():
            collected.setdefault(key, []).append(values[0])
    return reduce_metrics(collected)


def balanced(batch: StepBatch, workers: int) -> StepBatch:
    """The rows in an order whose cut among `workers` ranks costs each about the same."""
    if workers < 2:
        return batch
    lengths = batch["prompt_lengths"].tolist(), batch["response_lengths"].tolist()
    return batch.rows(balanced_order(*lengths, workers, batch.uids))


def mini_batch_rows(
    uids: Sequence[str], prompts: int, epochs: int, seed: Sequence[int]
) -> Iterator[np.ndarray]:
    """Rows of each mini-batch, `epochs` times through the batch.

    A prompt's rows stay together, as they share its forward pass. With one mini-batch per epoch the rows
    keep their order; otherwise prompts are shuffled in each epoch by `seed`. Which prompts a mini-batch
    holds does not depend on the order of the batch's rows.

    Args:
        uids: prompt of each row.
        prompts: prompts in one mini-batch.
        epochs: passes over the batch.
        seed: entropy of the shuffle.

    Yields:
        Row numbers, int64.
    """
    rows: dict[str, list[int]] = {}
    for row, uid in enumerate(uids):
        rows.setdefault(uid, []).append(row)
    groups = list(rows.values())
    by_name = [rows[uid] for uid in sorted(rows)]
    for epoch in range(epochs):
        if len(groups) > prompts:
            order = np.random.default_rng([*seed, epoch]).permutation(len(groups))
            groups = [by_name[i] for i in order]
        for start in range(0, len(groups), prompts):
            yield np.concatenate([np.asarray(group) for group in groups[start : start + prompts]])
