"""Keys that were changed and that nothing in this run reads: named before it starts."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import OmegaConf

from rl_algos import get_adv_estimator_spec, get_policy_loss_spec
from rl_rollout import resolve_name
from rl_rollout.precision import COMPUTE_KEYS

from ..config.inputs import needs, uses_reference
from ..config.loading import config_keys
from ..config.tree import PPOConfig

ACTOR, ROLLOUT, CORRECTION = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "algorithm.rollout_correction",
)


FOLLOWERS = ("critic.model.path", "critic.model.revision")  # the policy's, where not set
OF_VLLM = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "enforce_eager",
    "enable_prefix_caching",
    "kv_cache_memory_bytes",
    "free_cache_engine",
)


def inert_keys(config: PPOConfig) -> list[str]:
    """One line for each key of a resolved configuration that differs from its default and has no effect."""
    tree = OmegaConf.structured(config)
    silent = list(_unread(config))
    lines = []
    for path, key in config_keys().items():
        why = next((why for start, why in silent if path == start or path.startswith(f"{start}.")), "")
        value = OmegaConf.select(tree, path)
        name = path.rpartition(".")[2]
        followed = path in FOLLOWERS and value == getattr(config.actor_rollout_ref.model, name)
        chosen = name in COMPUTE_KEYS  # was perhaps auto
        if why and value != key.default and not (followed or chosen):
            lines.append(f"{path}={value} has no effect: {why}")
    return lines


def _unread(config: PPOConfig) -> Iterator[tuple[str, str]]:
    """Keys, or parents of keys, that this run does not read, and why."""
    yield from _of_parts(config)
    yield from _of_algorithm(config)
    yield from _of_engine(config)


def _of_parts(config: PPOConfig) -> Iterator[tuple[str, str]]:
    """What belongs to a part that the run lacks."""
    policy, trainer, reward = config.actor_rollout_ref, config.trainer, config.reward
    keys: tuple[str, ...]
    if not needs(config, "values"):
        why = f"algorithm.adv_estimator={config.algorithm.adv_estimator} has no critic"
        yield from ((key, why) for key in ("critic", "trainer.critic_warmup"))
    if not reward.model_enable:
        yield "reward.model", "reward.model_enable=false"
    if not reward.rules:
        yield from ((f"reward.{key}", "there is no rule reward") for key in ("timeout_s", "num_processes"))
    if not reward.overlong_buffer_len:
        yield "reward.overlong_penalty_factor", "reward.overlong_buffer_len=0"
    if not uses_reference(config):
        yield "actor_rollout_ref.ref", "no KL to a reference is used (use_kl_in_reward, use_kl_loss)"
    if not policy.model.lora_rank:
        keys = ("lora_alpha", "target_modules")
        yield from ((f"actor_rollout_ref.model.{key}", "model.lora_rank=0") for key in keys)
    if not config.data.val_files:
        keys = ("trainer.test_freq", "trainer.val_n", "trainer.val_before_train", f"{ROLLOUT}.val")
        yield from ((key, "data.val_files is empty") for key in keys)
    if trainer.mode == "async":
        yield "trainer.staleness", "trainer.mode=async reads async_training.staleness"
    else:
        yield "async_training", f"trainer.mode={trainer.mode}"
    if trainer.total_training_steps >= 0:
        yield "trainer.total_epochs", f"trainer.total_training_steps={trainer.total_training_steps} decides"


def _of_algorithm(config: PPOConfig) -> Iterator[tuple[str, str]]:
    """Options of estimators, losses and corrections that were not chosen."""
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    estimator, loss = algorithm.adv_estimator, actor.policy_loss.loss_mode
    keys: tuple[str, ...]
    taken = get_adv_estimator_spec(estimator).options
    for key in ("gamma", "lam", "norm_adv_by_std_in_grpo"):
        if key not in taken:
            yield f"algorithm.{key}", f"algorithm.adv_estimator={estimator} does not read it"
    if not needs(config, "reward_components"):
        keys = ("gdpo_reward_keys", "gdpo_reward_weights")
        yield from ((f"algorithm.{key}", f"algorithm.adv_estimator={estimator} is not gdpo") for key in keys)
    options = get_policy_loss_spec(loss).options
    clips = [key for key in ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c") if key not in options]
    if "clip_ratio" not in options and "clip_ratio_low" not in options:
        clips.append("clip_ratio")
    yield from ((f"{ACTOR}.{key}", f"the loss {loss} does not read it") for key in clips)
    if "selected" not in get_policy_loss_spec(loss).inputs:
        yield "algorithm.clip_cov_ratio", f"the loss {loss} chooses no tokens"
    if not algorithm.use_kl_in_reward:
        yield from (
            (f"algorithm.{key}", "algorithm.use_kl_in_reward=false") for key in ("kl_ctrl", "kl_penalty")
        )
    elif algorithm.kl_ctrl.type == "fixed":
        yield from ((f"algorithm.kl_ctrl.{key}", "kl_ctrl.type=fixed") for key in ("horizon", "target_kl"))
    if not actor.use_kl_loss:
        keys = ("kl_loss_coef", "kl_loss_type")
        yield from ((f"{ACTOR}.{key}", "actor.use_kl_loss=false") for key in keys)
    if algorithm.rollout_correction.rollout_is == "none":
        keys = ("rollout_is_upper", "rollout_is_lower", "rollout_is_batch_normalize")
        yield from ((f"{CORRECTION}.{key}", "rollout_is=none") for key in keys)
    if algorithm.rollout_correction.rollout_rs == "none":
        keys = ("rollout_rs_level", "rollout_rs_upper", "rollout_rs_lower")
        yield from ((f"{CORRECTION}.{key}", "rollout_rs=none") for key in keys)
    if not algorithm.filter_groups.enable:
        yield "algorithm.filter_groups", "filter_groups.enable=false"


def _of_engine(config: PPOConfig) -> Iterator[tuple[str, str]]:
    """Options of the other engine, or of another device."""
    rollout, device = config.actor_rollout_ref.rollout, config.trainer.device
    engine = resolve_name(rollout.name)
    of_vllm = (
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "enforce_eager",
        "enable_prefix_caching",
    )
    if engine == "hf":
        keys = (*of_vllm, "kv_cache_memory_bytes", "free_cache_engine", "gpu_memory_utilization")
        yield from ((f"{ROLLOUT}.{key}", "it is an option of vllm, and the engine is hf") for key in keys)
    elif device == "cpu":
        yield f"{ROLLOUT}.gpu_memory_utilization", "trainer.device=cpu"
    if engine == "vllm":
        yield f"{ROLLOUT}.hf_batch_size", "it is an option of hf, and the engine is vllm"
    if not rollout.agent_loop:
        yield f"{ROLLOUT}.max_turns", f"{ROLLOUT}.agent_loop is empty"
    yield f"{ROLLOUT}.weight_transfer", "a run gives its engines their weights itself"
