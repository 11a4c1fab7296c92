"""From rewards to advantages, on the driver: the configured estimator gets what it names."""

from __future__ import annotations

from typing import Any

import torch

from rl_algos import get_adv_estimator_spec, get_policy_loss_spec, place_on_last_token

from .config import AlgorithmConfig, PPOConfig
from .errors import ConfigError
from .step_batch import StepBatch

PER_TOKEN = frozenset({"values", "old_log_probs", "sum_pi_squared"})
OPTIONAL = frozenset({"rollout_is_weights"})
OF_ROWS = frozenset({"index", "trajectory_index", "anchor_state", "step_returns"})
MADE = PER_TOKEN | OPTIONAL | OF_ROWS | {"reward_baselines", "reward_components"}
MADE_FOR_LOSS = frozenset({"selected"})


def needs(config: PPOConfig, name: str) -> bool:
    """Whether the configured estimator reads an input, e.g. `values` of a critic."""
    return name in get_adv_estimator_spec(config.algorithm.adv_estimator).inputs


def read_by_loss(config: PPOConfig) -> tuple[str, ...]:
    """Inputs that the configured policy loss reads beside those of every loss."""
    return get_policy_loss_spec(config.actor_rollout_ref.actor.policy_loss.loss_mode).inputs


def check_inputs(config: PPOConfig) -> None:
    """Raise a `ConfigError` where estimator or loss read something that this trainer does not make."""
    missing = set(get_adv_estimator_spec(config.algorithm.adv_estimator).inputs) - MADE
    if missing:
        raise ConfigError(
            f"algorithm.adv_estimator={config.algorithm.adv_estimator} reads {', '.join(sorted(missing))}, "
            "which the trainer does not make: override RayPPOTrainer.compute_advantages to provide it"
        )
    mode = config.actor_rollout_ref.actor.policy_loss.loss_mode
    missing = set(read_by_loss(config)) - MADE_FOR_LOSS
    if missing:
        raise ConfigError(
            f"actor_rollout_ref.actor.policy_loss.loss_mode={mode} reads {', '.join(sorted(missing))}, "
            "which the trainer does not make: override RayPPOTrainer.update_actor to provide it"
        )


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
