"""How many steps a run takes, from its configuration."""

from __future__ import annotations

import math

from rl_workers.config import ActorConfig, CriticConfig

from .tree import PPOConfig


def optimizer_steps_per_batch(config: PPOConfig) -> int:
    """Optimizer steps of the policy in one training step (full batches)."""
    return _steps_per_batch(config, config.actor_rollout_ref.actor)


def set_schedules(config: PPOConfig, total_steps: int) -> None:
    """Tell each model's schedule how many optimizer steps it has, given the training steps; at least one."""
    actor, critic = config.actor_rollout_ref.actor, config.critic
    trained = max(0, total_steps - config.trainer.critic_warmup)
    actor.optim.total_training_steps = max(1, trained * _steps_per_batch(config, actor))
    critic.optim.total_training_steps = max(1, total_steps * _steps_per_batch(config, critic))


def _steps_per_batch(config: PPOConfig, model: ActorConfig | CriticConfig) -> int:
    return math.ceil(config.data.train_batch_size / model.ppo_mini_batch_size) * model.ppo_epochs


def total_training_steps(config: PPOConfig, prompts: int) -> int:
    """Training steps of the run, given the number of training prompts."""
    if config.trainer.total_training_steps >= 0:
        return config.trainer.total_training_steps
    return math.ceil(prompts * config.trainer.total_epochs / config.data.train_batch_size)


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens now; never where `every` is not positive."""
    return every > 0 and step % every == 0
