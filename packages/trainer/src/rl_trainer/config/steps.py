"""How many steps a run takes, from its configuration."""

from __future__ import annotations

import math

from .tree import PPOConfig


def optimizer_steps_per_batch(config: PPOConfig) -> int:
    """Optimizer steps of the policy in one training step (full batches)."""
    actor = config.actor_rollout_ref.actor
    return math.ceil(config.data.train_batch_size / actor.ppo_mini_batch_size) * actor.ppo_epochs


def total_training_steps(config: PPOConfig, prompts: int) -> int:
    """Training steps of the run, given the number of training prompts."""
    if config.trainer.total_training_steps >= 0:
        return config.trainer.total_training_steps
    return math.ceil(prompts * config.trainer.total_epochs / config.data.train_batch_size)


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens now; never where `every` is not positive."""
    return every > 0 and step % every == 0
