"""What follows from the configuration, filled in before anything starts."""

from __future__ import annotations

import os

import torch

from rl_rollout import resolve_name
from rl_workers.errors import RLWorkersError
from rl_workers.user_modules import import_modules

from ..config.tree import PPOConfig
from ..errors import ConfigError
from .chat import chat_template
from .checks import check_own_values, check_whole
from .models import pin_models
from .precision import choose_precision


def resolve(config: PPOConfig) -> PPOConfig:
    """Fill in what follows from other keys, in place, and check that the whole fits together.

    Raises:
        ConfigError: the first contradiction found; it names the keys, the rule and the fix.
    """
    policy, data, trainer = config.actor_rollout_ref, config.data, config.trainer
    config.validate()
    import_user_modules(config)
    policy.rollout.prompt_length = data.max_prompt_length
    policy.rollout.response_length = data.max_response_length
    # Only vLLM takes adapters as they are, and only from its own process; others get them merged.
    takes_adapters = resolve_name(policy.rollout.name) == "vllm" and not trainer.n_rollout_workers_per_node
    policy.rollout.lora_rank = policy.model.lora_rank if takes_adapters else 0
    policy.rollout.trust_remote_code = policy.model.trust_remote_code
    trainer.ray_address = trainer.ray_address or os.environ.get("RAY_ADDRESS", "")
    if trainer.device == "auto":
        if trainer.ray_address and trainer.backend == "ray":
            raise ConfigError(
                f"trainer.device=auto looks at this machine, and the run joins {trainer.ray_address}: "
                "set it to cuda or cpu"
            )
        trainer.device = "cuda" if torch.cuda.is_available() else "cpu"
    policy.device = config.critic.device = config.reward.model.device = trainer.device
    choose_precision(config)
    policy.seed = config.critic.seed = trainer.seed
    if not config.critic.model.path:
        config.critic.model.path, config.critic.model.revision = policy.model.path, policy.model.revision
    # A schedule's length is known once the data is read: until then there is one step at least.
    for optim in (policy.actor.optim, config.critic.optim):
        optim.total_training_steps = max(1, optim.total_training_steps)
    check_own_values(config)
    trainer.n_workers_per_node = workers_per_node(config)
    check_whole(config)
    pin_models(config)
    policy.chat_template = chat_template(config)
    return config


def import_user_modules(config: PPOConfig) -> None:
    """Import `algorithm.modules` into this process; the policy's workers do it by their own configuration.

    Raises:
        ConfigError: one can't be imported.
    """
    config.actor_rollout_ref.modules = config.algorithm.modules
    try:
        import_modules(config.algorithm.modules)
    except RLWorkersError as error:
        raise ConfigError(str(error)) from error


def workers_per_node(config: PPOConfig) -> int:
    """Worker processes per node: as configured, else one per GPU, else one per core up to two."""
    trainer = config.trainer
    given = trainer.n_workers_per_node or trainer.n_gpus_per_node
    if trainer.backend == "local":
        if max(given, trainer.nnodes) > 1 or trainer.n_rollout_workers_per_node:
            raise ConfigError(
                "trainer.backend=local is one process: leave trainer.n_workers_per_node at 0 or 1"
            )
        return 1
    if given:
        return given
    if trainer.ray_address:
        raise ConfigError(
            f"trainer.n_workers_per_node must be set for a run that joins a cluster ({trainer.ray_address})"
        )
    return torch.cuda.device_count() if trainer.device == "cuda" else min(2, os.cpu_count() or 1)
