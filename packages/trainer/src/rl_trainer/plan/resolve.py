"""The arithmetic of a run, checked before anything starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from rl_algos.errors import RLAlgosError
from rl_rollout import resolve_name
from rl_workers.errors import RLWorkersError

from ..config.inputs import check_inputs, needs, uses_reference
from ..config.tree import PPOConfig
from ..data.sources import check_source
from ..errors import ConfigError
from ..reward.process import load_reward_function
from ..view.tracking import check_trackers
from .precision import choose_precision


def resolve(config: PPOConfig) -> PPOConfig:
    """Fill in what follows from other keys, in place, and check that the whole fits together.

    Raises:
        ConfigError: the first contradiction found; it names the keys, the rule and the fix.
    """
    policy, data, trainer = config.actor_rollout_ref, config.data, config.trainer
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
    config.critic.model.path = config.critic.model.path or policy.model.path
    trainer.n_workers_per_node = workers_per_node(config)
    _check_data(config)
    _check_algorithm(config)
    _check_batch(config)
    _check_trainer(config)
    _check_parts(config)
    return config


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


def _check_data(config: PPOConfig) -> None:
    data = config.data
    for key, sources in (("data.train_files", data.train_files), ("data.val_files", data.val_files)):
        for source in sources:
            check_source(key, source)
    if not data.train_files:
        raise ConfigError(
            "data.train_files is empty: name a JSONL or Parquet file, a datasets id or a reasoning-gym task"
        )
    _positive(data.train_batch_size, "data.train_batch_size")
    _positive(data.max_prompt_length, "data.max_prompt_length")
    _positive(data.max_response_length, "data.max_response_length")


def _check_algorithm(config: PPOConfig) -> None:
    try:
        check_inputs(config)
    except RLAlgosError as error:
        raise ConfigError(f"algorithm.adv_estimator or actor.policy_loss.loss_mode: {error}") from error
    _one_of(config.algorithm.kl_ctrl.type, ("fixed", "adaptive"), "algorithm.kl_ctrl.type")
    policy = config.actor_rollout_ref
    dtypes = policy.actor.fsdp_config.compute_dtype, policy.ref.fsdp_config.compute_dtype
    if uses_reference(config) and dtypes[0] != dtypes[1]:
        raise ConfigError(
            f"actor_rollout_ref.actor.fsdp_config.compute_dtype={dtypes[0]} and actor_rollout_ref.ref."
            f"fsdp_config.compute_dtype={dtypes[1]}: the KL would measure rounding; set both to one"
        )
    correction = config.algorithm.rollout_correction
    _one_of(correction.rollout_is, ("none", "token", "sequence"), "algorithm.rollout_correction.rollout_is")
    _one_of(correction.rollout_rs, ("none", "ratio", "k2", "k3"), "algorithm.rollout_correction.rollout_rs")
    levels = ("token", "sum", "mean", "max")
    _one_of(correction.rollout_rs_level, levels, "algorithm.rollout_correction.rollout_rs_level")
    if correction.bypass_mode and correction.active:
        raise ConfigError(
            "algorithm.rollout_correction.bypass_mode=true takes the engine's log-probs as the old ones: "
            "rollout_is and rollout_rs would compare them with themselves: set both to none, or this to false"
        )
    if correction.bypass_mode and needs(config, "sum_pi_squared"):
        raise ConfigError(
            f"algorithm.adv_estimator={config.algorithm.adv_estimator} reads the policy's own probabilities, "
            "which algorithm.rollout_correction.bypass_mode=true leaves out: set it to false"
        )
    if needs(config, "reward_components") and not config.algorithm.gdpo_reward_keys:
        raise ConfigError(
            "algorithm.adv_estimator=gdpo needs algorithm.gdpo_reward_keys: the names of the numbers in the "
            "reward function's dict that are components of the reward"
        )
    if config.actor_rollout_ref.rollout.n < 2 and needs(config, "index"):
        raise ConfigError(
            f"algorithm.adv_estimator={config.algorithm.adv_estimator} compares the responses of one prompt: "
            f"set actor_rollout_ref.rollout.n to 2 or more (it is {config.actor_rollout_ref.rollout.n})"
        )


def _check_batch(config: PPOConfig) -> None:
    data, policy = config.data, config.actor_rollout_ref
    longest = data.max_prompt_length + data.max_response_length
    batches = [("actor_rollout_ref.actor", policy.actor.ppo_mini_batch_size, policy.actor.ppo_epochs)]
    budgets = [("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", policy.actor.ppo_max_token_len_per_gpu)]
    if needs(config, "values"):
        batches.append(("critic", config.critic.ppo_mini_batch_size, config.critic.ppo_epochs))
        budgets.append(("critic.ppo_max_token_len_per_gpu", config.critic.ppo_max_token_len_per_gpu))
    for group, size, epochs in batches:
        _positive(size, f"{group}.ppo_mini_batch_size")
        _positive(epochs, f"{group}.ppo_epochs")
        if size > data.train_batch_size:
            raise ConfigError(
                f"{group}.ppo_mini_batch_size={size} is more than data.train_batch_size="
                f"{data.train_batch_size} (both count prompts): lower the first or raise the second"
            )
    for key, budget in budgets:
        if budget < longest:
            raise ConfigError(
                f"{key}={budget} is less than the longest possible row, data.max_prompt_length + "
                f"data.max_response_length = {data.max_prompt_length} + {data.max_response_length} = "
                f"{longest} tokens: raise it to {longest} or more"
            )


def _check_trainer(config: PPOConfig) -> None:
    trainer = config.trainer
    if config.reward.function:
        load_reward_function(config.reward.function)
    elif not config.reward.model_enable:
        raise ConfigError(
            "reward.function is empty: name a rule reward as package.module:name or file.py:name, or set "
            "reward.model_enable=true"
        )
    check_trackers(trainer.logger)
    _one_of(trainer.resume_mode, ("auto", "disable"), "trainer.resume_mode")
    _one_of(trainer.backend, ("ray", "local"), "trainer.backend")
    if trainer.n_workers_per_node and trainer.n_gpus_per_node not in (0, trainer.n_workers_per_node):
        raise ConfigError("trainer.n_gpus_per_node and trainer.n_workers_per_node mean the same: set one")
    if trainer.device == "cuda" and not torch.cuda.is_available() and not trainer.ray_address:
        raise ConfigError("trainer.device=cuda, but torch sees no CUDA device here: use cpu or auto")
    if trainer.staleness < 0 or trainer.n_rollout_workers_per_node < 0:
        raise ConfigError("trainer.staleness and trainer.n_rollout_workers_per_node must not be negative")
    if trainer.staleness and not trainer.n_rollout_workers_per_node:
        raise ConfigError(
            f"trainer.staleness={trainer.staleness} generates while others train: set "
            "trainer.n_rollout_workers_per_node to 1 or more"
        )
    correction = config.algorithm.rollout_correction
    if trainer.staleness and correction.rollout_is == "none" and not correction.bypass_mode:
        raise ConfigError(
            f"trainer.staleness={trainer.staleness} trains on rows of an older policy: set "
            "algorithm.rollout_correction.rollout_is to token or sequence, or bypass_mode=true, where the "
            "loss's own ratio is to the policy that sampled"
        )
    if trainer.val_n > 1 and config.actor_rollout_ref.rollout.val.greedy:
        raise ConfigError(
            f"trainer.val_n={trainer.val_n} answers would all be the greedy one: set "
            "actor_rollout_ref.rollout.val.do_sample=true, or val_n to 1"
        )
    for key in ("max_ckpt_to_keep", "timeout_s", "total_epochs", "nnodes"):
        _positive(getattr(trainer, key), f"trainer.{key}")


def _check_parts(config: PPOConfig) -> None:
    """The packages' own checks of their own keys."""
    try:
        config.actor_rollout_ref.validate()
        if needs(config, "values"):
            config.critic.validate()
        if config.reward.model_enable:
            config.reward.model.validate()
    except RLWorkersError as error:
        raise ConfigError(str(error)) from error
    path = config.actor_rollout_ref.model.path
    file = Path(path) / "config.json"
    if not file.is_file():
        raise ConfigError(
            f"actor_rollout_ref.model.path={path!r} is not a folder with a Hugging Face model (config.json)"
        )
    positions = json.loads(file.read_text(encoding="utf-8")).get("max_position_embeddings")
    longest = config.data.max_prompt_length + config.data.max_response_length
    if positions and longest > positions:
        raise ConfigError(
            f"data.max_prompt_length + data.max_response_length = {longest} tokens, and the model in {path} "
            f"has {positions} positions (max_position_embeddings): lower one of the two"
        )


def _one_of(value: str, choices: tuple[str, ...], key: str) -> None:
    if value not in choices:
        raise ConfigError(f"{key}={value!r}: choose {', '.join(choices[:-1])} or {choices[-1]}")


def _positive(value: float, key: str) -> None:
    if value <= 0:
        raise ConfigError(f"{key}={value}: must be positive")
