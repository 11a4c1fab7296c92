"""From rewards to advantages, on the driver: the configured estimator gets what it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_algos import get_adv_estimator_spec, get_policy_loss_spec

from .config import AlgorithmConfig, PPOConfig
from .errors import ConfigError

MADE = frozenset({"index", "values", "reward_baselines", "reward_components"})
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


def compute_advantages(
    config: AlgorithmConfig, tensors: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the configured estimator.

    Args:
        config: which estimator, and its options.
        tensors: `token_level_rewards response_mask` `[B, R]`, `index` (prompt of each row) and whatever else
            the estimator names (`values` `[B, R]`, `reward_baselines` `[B]`, `reward_components` `[B, K]`).

    Returns:
        Advantages and returns, `[B, R]`.
    """
    spec = get_adv_estimator_spec(config.adv_estimator)
    offered = {
        "gamma": config.gamma,
        "lam": config.lam,
        "norm_adv_by_std_in_grpo": config.norm_adv_by_std_in_grpo,
        "reward_weights": config.gdpo_reward_weights or None,
    }
    options = {name: value for name, value in offered.items() if name in spec.options}
    inputs = {name: tensors[name] for name in ("token_level_rewards", "response_mask", *spec.inputs)}
    advantages, returns = spec.fn(**inputs, **options)
    return advantages, returns
