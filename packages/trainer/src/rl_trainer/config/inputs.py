"""What the configured estimator and loss read, and whether the trainer makes it."""

from __future__ import annotations

from rl_algos import get_adv_estimator_spec, get_policy_loss_spec

from ..errors import ConfigError
from .steps import optimizer_steps_per_batch
from .tree import PPOConfig

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


def uses_reference(config: PPOConfig) -> bool:
    """Whether a KL to the reference policy stands in the reward or in the loss."""
    return config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss


def uses_old_log_probs(config: PPOConfig) -> bool:
    """Whether old log-probs are a column; with one optimizer step per batch they are the current ones."""
    algorithm = config.algorithm
    return (
        optimizer_steps_per_batch(config) > 1
        or algorithm.use_kl_in_reward
        or algorithm.filter_groups.enable
        or algorithm.rollout_correction.active
        or algorithm.rollout_correction.bypass_mode
        or "selected" in read_by_loss(config)
        or needs(config, "old_log_probs")
    )


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
