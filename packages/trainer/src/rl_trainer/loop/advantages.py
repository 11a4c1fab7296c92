"""From rewards to advantages, on the driver: the configured estimator gets what it names."""

from __future__ import annotations

from typing import Any

import torch

from rl_algos import (
    AdaptiveKLController,
    FixedKLController,
    apply_kl_penalty,
    get_adv_estimator_spec,
    place_on_last_token,
)

from ..config.inputs import OF_ROWS, OPTIONAL, PER_TOKEN
from ..config.tree import AlgorithmConfig
from .metrics import Metrics
from .step_batch import StepBatch


def subtract_kl(
    batch: StepBatch, controller: FixedKLController | AdaptiveKLController, kl_penalty: str
) -> Metrics:
    """Take the KL to the reference off each token's reward, and let the controller react.

    Reads `old_log_probs ref_log_prob response_mask` `[B, R]`, puts `token_level_rewards` `[B, R]`.
    """
    batch.fetch("old_log_probs", "ref_log_prob", "response_mask")
    coefficient = controller.value
    rewards, metrics = apply_kl_penalty(
        batch.token_level_rewards,
        batch["old_log_probs"],
        batch["ref_log_prob"],
        batch["response_mask"],
        coefficient,
        kl_penalty,
    )
    kl = metrics["reward_kl_penalty"].value().item()
    controller.update(kl, len(batch))
    batch.put(token_level_rewards=rewards)
    return {"actor/reward_kl_penalty": kl, "actor/reward_kl_penalty_coeff": coefficient}


def compute_advantages(config: AlgorithmConfig, batch: StepBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the configured estimator.

    A reward of the whole response needs no column per token: the estimator works on rows whose tokens are
    only counted, and an advantage that is the same all along each response stays one number per row.

    Args:
        config: which estimator, and its options.
        batch: has `scores` `[B]` or `token_level_rewards` `[B, R]`, and whatever else the estimator names
            (`values old_log_probs sum_pi_squared` `[B, R]`, `reward_baselines` `[B]`, `reward_components`
            `[B, K]`; `rollout_is_weights` `[B, R]` if there are any).

    Returns:
        Advantages and returns, each `[B]` or `[B, R]`.
    """
    spec = get_adv_estimator_spec(config.adv_estimator)
    offered = {
        "gamma": config.gamma,
        "lam": config.lam,
        "norm_adv_by_std_in_grpo": config.norm_adv_by_std_in_grpo,
        "reward_weights": config.gdpo_reward_weights or None,
    }
    options = {name: value for name, value in offered.items() if name in spec.options}
    names = [name for name in spec.inputs if name not in OPTIONAL or name in batch.made]
    inputs = {name: of_rows(batch, name) if name in OF_ROWS else batch[name] for name in names}
    per_token = "token_level_rewards" in batch.made or not PER_TOKEN.isdisjoint(names)
    mask = batch["response_mask"] if per_token else batch.action_mask
    rewards = batch.token_level_rewards if per_token else place_on_last_token(batch["scores"], mask)
    made = spec.fn(token_level_rewards=rewards, response_mask=mask, **inputs, **options)
    advantages, returns = made if per_token else (along_responses(batch, column, mask) for column in made)
    return advantages, returns


def of_rows(batch: StepBatch, name: str) -> Any:
    """What places each row among the others, `[B]`: its prompt, and where rows are steps, its trajectory.

    A row is a step of the trajectory and from the state that the dataset's columns `trajectory_index` and
    `anchor_state` name; without them it is a trajectory of its own, of one step from its prompt.
    """
    if name == "step_returns":
        return batch["scores"]
    objects = batch.local.non_tensor_batch
    if name != "index" and name in objects:  # a dataset's own "index" is no group of responses
        return list(objects[name])
    return list(range(len(batch))) if name == "trajectory_index" else batch.uids


def along_responses(batch: StepBatch, column: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
    """A column of `action_mask`'s shape as `[B]` where it does not vary along any response, else `[B, R]`."""
    if column.shape[1] and bool(((column == column[:, :1]) | ~action_mask).all()):
        return column[:, 0].clone()
    mask = batch["response_mask"].bool()
    spread = column.new_zeros(mask.shape)
    spread[mask] = column[action_mask]
    return spread
