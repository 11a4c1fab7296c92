"""Whether the parts of a configuration fit together; what a part alone can know, its own class checks."""

from __future__ import annotations

from pathlib import Path

import torch

from rl_algos.errors import RLAlgosError
from rl_rollout import registered_rollouts, resolve_name
from rl_rollout.agents.by_name import find_agent_loop
from rl_rollout.errors import RLRolloutError
from rl_workers.config import ActorConfig, CriticConfig
from rl_workers.errors import RLWorkersError

from ..config.inputs import check_inputs, needs, uses_reference
from ..config.rules import check
from ..config.tree import PPOConfig
from ..data.sources import check_source
from ..errors import ConfigError
from ..reward.process import load_reward_function
from ..view.tracking import check_trackers

ROLLOUT = "actor_rollout_ref.rollout"


def check_own_values(config: PPOConfig) -> None:
    """The packages' own checks of their own keys, as far as the run has the part.

    Raises:
        ConfigError: a value can't work.
    """
    rollout = config.actor_rollout_ref.rollout
    try:
        check_inputs(config)
    except RLAlgosError as error:
        raise ConfigError(f"algorithm.adv_estimator or actor.policy_loss.loss_mode: {error}") from error
    try:
        config.actor_rollout_ref.validate()
        if needs(config, "values"):
            config.critic.validate()
        if config.reward.model_enable:
            config.reward.model.validate()
        find_agent_loop(rollout.agent_loop)
    except (RLWorkersError, RLRolloutError) as error:
        raise ConfigError(str(error)) from error
    names = [*registered_rollouts(), "auto"]
    check(rollout.name in names, f"{ROLLOUT}.name", rollout.name, f"choose {', '.join(names)}")


def check_whole(config: PPOConfig) -> None:
    """Raise a `ConfigError` for the first contradiction between parts."""
    _check_sources(config)
    _check_algorithm(config)
    _check_sampling(config)
    _check_batch(config)
    _check_budgets(config)
    _check_ranks(config)
    _check_trainer(config)


def _check_sources(config: PPOConfig) -> None:
    data = config.data
    for key, sources in (("data.train_files", data.train_files), ("data.val_files", data.val_files)):
        for source in sources:
            check_source(key, source)
    if not data.train_files:
        raise ConfigError(
            "data.train_files is empty: name a JSONL or Parquet file, a datasets id or a reasoning-gym task"
        )
    buffer, longest = config.reward.overlong_buffer_len, data.max_response_length
    rule = f"lies within a response: at most data.max_response_length={longest}"
    check(buffer <= longest, "reward.overlong_buffer_len", buffer, rule)


def _check_algorithm(config: PPOConfig) -> None:
    policy, estimator = config.actor_rollout_ref, config.algorithm.adv_estimator
    dtypes = policy.actor.fsdp_config.compute_dtype, policy.ref.fsdp_config.compute_dtype
    if uses_reference(config) and dtypes[0] != dtypes[1]:
        raise ConfigError(
            f"actor_rollout_ref.actor.fsdp_config.compute_dtype={dtypes[0]} and actor_rollout_ref.ref."
            f"fsdp_config.compute_dtype={dtypes[1]}: the KL would measure rounding; set both to one"
        )
    correction = config.algorithm.rollout_correction
    if correction.bypass_mode and correction.active:
        raise ConfigError(
            "algorithm.rollout_correction.bypass_mode=true takes the engine's log-probs as the old ones: "
            "rollout_is and rollout_rs would compare them with themselves: set both to none, or this to false"
        )
    if correction.bypass_mode and needs(config, "sum_pi_squared"):
        raise ConfigError(
            f"algorithm.adv_estimator={estimator} reads the policy's own probabilities, "
            "which algorithm.rollout_correction.bypass_mode=true leaves out: set it to false"
        )
    if needs(config, "reward_components") and not config.algorithm.gdpo_reward_keys:
        raise ConfigError(
            "algorithm.adv_estimator=gdpo needs algorithm.gdpo_reward_keys: the names of the numbers in the "
            "reward function's dict that are components of the reward"
        )
    if policy.rollout.n < 2 and needs(config, "index"):
        raise ConfigError(
            f"algorithm.adv_estimator={estimator} compares the responses of one prompt: "
            f"set {ROLLOUT}.n to 2 or more (it is {policy.rollout.n})"
        )


def _check_sampling(config: PPOConfig) -> None:
    rollout, correction = config.actor_rollout_ref.rollout, config.algorithm.rollout_correction
    greedy = f"{ROLLOUT}.temperature={rollout.temperature}, do_sample={str(rollout.do_sample).lower()}"
    if rollout.sampling().greedy:
        raise ConfigError(
            f"{greedy}: all responses to a prompt would be the same greedy one, which teaches nothing; set a "
            "temperature above 0 and do_sample=true"
        )
    cut = rollout.top_p < 1 or rollout.top_k > 0
    if cut and (correction.active or correction.bypass_mode):
        raise ConfigError(
            f"{ROLLOUT}.top_p={rollout.top_p:g}, top_k={rollout.top_k}: the engine's log-probs are "
            "renormalised over the tokens that are kept, and algorithm.rollout_correction compares them "
            "with the trainer's, which are not; set top_p=1 and top_k=-1, or turn the correction off"
        )
    trainer = config.trainer
    if trainer.val_n > 1 and rollout.val.greedy:
        raise ConfigError(
            f"trainer.val_n={trainer.val_n} answers would all be the greedy one: set "
            f"{ROLLOUT}.val.do_sample=true, or val_n to 1"
        )


def _check_batch(config: PPOConfig) -> None:
    data, policy = config.data, config.actor_rollout_ref
    sizes = {"actor_rollout_ref.actor": policy.actor.ppo_mini_batch_size}
    if needs(config, "values"):
        sizes["critic"] = config.critic.ppo_mini_batch_size
    for group, size in sizes.items():
        if size > data.train_batch_size:
            raise ConfigError(
                f"{group}.ppo_mini_batch_size={size} is more than data.train_batch_size="
                f"{data.train_batch_size} (both count prompts): lower the first or raise the second"
            )


def _check_budgets(config: PPOConfig) -> None:
    """No row is longer than what a micro-batch, an engine or a model holds."""
    policy = config.actor_rollout_ref
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    longest = prompt + response
    lengths = f"data.max_prompt_length + data.max_response_length = {prompt} + {response} = {longest} tokens"
    sp, actor = policy.actor.ulysses_sequence_parallel_size, "actor_rollout_ref.actor"
    budgets = {f"{actor}.ppo_max_token_len_per_gpu": (policy.actor.ppo_max_token_len_per_gpu, sp)}
    if uses_reference(config) and policy.ref.log_prob_max_token_len_per_gpu:
        key = "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"
        budgets[key] = (policy.ref.log_prob_max_token_len_per_gpu, sp)
    if needs(config, "values"):
        critic = config.critic
        ranks = critic.ulysses_sequence_parallel_size
        budgets["critic.ppo_max_token_len_per_gpu"] = (critic.ppo_max_token_len_per_gpu, ranks)
    for key, (budget, ranks) in budgets.items():
        enough = -(-longest // ranks)
        if budget < enough:
            raise ConfigError(
                f"{key}={budget} is less than the longest possible row, {lengths}"
                f"{f' over {ranks} ranks' if ranks > 1 else ''}: raise it to {enough} or more"
            )
    model = config.reward.model
    if config.reward.model_enable and model.forward_max_token_len_per_gpu < model.max_length:
        raise ConfigError(
            f"reward.model.forward_max_token_len_per_gpu={model.forward_max_token_len_per_gpu} is less than "
            f"reward.model.max_length={model.max_length}: raise the first or lower the second"
        )
    if 0 < policy.rollout.max_model_len < longest:
        raise ConfigError(
            f"{ROLLOUT}.max_model_len={policy.rollout.max_model_len} is less than the longest possible row, "
            f"{lengths}: raise it, or leave it at 0"
        )


def _check_ranks(config: PPOConfig) -> None:
    """Groups of ranks divide the ranks that there are."""
    trainer, policy = config.trainer, config.actor_rollout_ref
    ranks = trainer.n_workers_per_node * trainer.nnodes
    engines = trainer.n_rollout_workers_per_node * trainer.nnodes or ranks
    tensor = policy.rollout.tensor_model_parallel_size
    groups = [(f"{ROLLOUT}.tensor_model_parallel_size", tensor, engines)]
    trained: dict[str, ActorConfig | CriticConfig] = {"actor_rollout_ref.actor": policy.actor}
    if needs(config, "values"):
        trained["critic"] = config.critic
    for prefix, model in trained.items():
        sequence = f"{prefix}.ulysses_sequence_parallel_size"
        groups.append((sequence, model.ulysses_sequence_parallel_size, ranks))
        groups.append((f"{prefix}.fsdp_config.fsdp_size", model.fsdp_config.fsdp_size, ranks))
    for key, size, among in groups:
        size = min(size, among) if key.endswith("fsdp_size") else size
        if size > 0 and among % size:
            raise ConfigError(f"{key}={size} does not divide the {among} worker processes: choose a divisor")
    if tensor > 1 and resolve_name(policy.rollout.name) == "hf":
        raise ConfigError(
            f"{ROLLOUT}.tensor_model_parallel_size={tensor}: the engine hf holds a whole model in each "
            f"process; set it to 1, or {ROLLOUT}.name=vllm"
        )


def _check_trainer(config: PPOConfig) -> None:
    trainer = config.trainer
    for function in config.reward.rules:
        load_reward_function(function)
    if not config.reward.rules and not config.reward.model_enable:
        raise ConfigError(
            "reward.function is empty: name a rule reward as package.module:name or file.py:name, or set "
            "reward.model_enable=true"
        )
    check_trackers(trainer.logger)
    if trainer.n_workers_per_node and trainer.n_gpus_per_node not in (0, trainer.n_workers_per_node):
        raise ConfigError("trainer.n_gpus_per_node and trainer.n_workers_per_node mean the same: set one")
    if trainer.device == "cuda" and not torch.cuda.is_available() and not trainer.ray_address:
        raise ConfigError("trainer.device=cuda, but torch sees no CUDA device here: use cpu or auto")
    _check_ahead(config)
    folder = Path(trainer.default_local_dir)
    rule = "is a file: name a folder for the run"
    check(not folder.is_file(), "trainer.default_local_dir", trainer.default_local_dir, rule)


def _check_ahead(config: PPOConfig) -> None:
    """Generating ahead needs engines apart, and a correction for what is older than the policy."""
    trainer, key, rollout = config.trainer, "trainer.staleness", config.actor_rollout_ref.rollout
    if trainer.mode == "async":
        key = "async_training.staleness"
        if not trainer.n_rollout_workers_per_node:
            raise ConfigError(
                "trainer.mode=async generates while others train: set trainer.n_rollout_workers_per_node to "
                "1 or more"
            )
        if rollout.tensor_model_parallel_size > 1:
            raise ConfigError(
                f"{ROLLOUT}.tensor_model_parallel_size={rollout.tensor_model_parallel_size}: "
                "trainer.mode=async needs engines of one process; set it to 1"
            )
    elif trainer.staleness and not trainer.n_rollout_workers_per_node:
        raise ConfigError(
            f"trainer.staleness={trainer.staleness} generates while others train: set "
            "trainer.n_rollout_workers_per_node to 1 or more"
        )
    correction = config.algorithm.rollout_correction
    if config.ahead and correction.rollout_is == "none" and not correction.bypass_mode:
        raise ConfigError(
            f"{key}={config.ahead} trains on rows of an older policy: set "
            "algorithm.rollout_correction.rollout_is to token or sequence, or bypass_mode=true, where the "
            "loss's own ratio is to the policy that sampled"
        )
