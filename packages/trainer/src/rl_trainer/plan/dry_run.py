"""What a run would do, in words: roles, processes, arithmetic, memory."""

from __future__ import annotations

from pathlib import Path

import safetensors

from ..config.inputs import needs, uses_reference
from ..config.steps import optimizer_steps_per_batch
from ..config.tree import PPOConfig
from .inert import inert_keys
from .models import description
from .precision import computes_in, emulated

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}  # auto: only the cluster knows, at most 4


def describe_plan(config: PPOConfig) -> str:
    """The plan of a resolved configuration, several lines of text."""
    data, policy, trainer = config.data, config.actor_rollout_ref, config.trainer
    workers = trainer.n_workers_per_node * trainer.nnodes
    rows = data.train_batch_size * policy.rollout.n
    actor = policy.actor
    lines = [
        f"roles       {', '.join(role_names(config))}, fused into one process per rank",
        f"processes   {trainer.nnodes} node(s) x {trainer.n_workers_per_node} on {trainer.device}",
        f"rows        {data.train_batch_size} prompts x {policy.rollout.n} samples = {rows} rows a step, "
        f"{rows / workers:.6g} a rank",
        f"precision   {computes_in(config)}",
        *(f"            {line}" for line in emulated(config)),
        f"tokens      at most {data.max_prompt_length} + {data.max_response_length} a row, "
        f"{actor.ppo_max_token_len_per_gpu} in a micro-batch",
        f"optimizer   {optimizer_steps_per_batch(config)} steps a batch: mini-batches of "
        f"{actor.ppo_mini_batch_size} prompts, {actor.ppo_epochs} epoch(s), "
        f"{actor.optim.name} at {actor.optim.lr:g}",
        f"advantages  {config.algorithm.adv_estimator}",
        f"loss        {actor.policy_loss.loss_mode}, {actor.loss_agg_mode}",
        *memory_lines(config, workers),
        *(f"unread      {line}" for line in inert_keys(config)),
    ]
    return "\n".join(lines)


def role_names(config: PPOConfig) -> list[str]:
    """Roles in force, as in `ResourcePoolManager`."""
    names = ["actor", "rollout"]
    if uses_reference(config):
        names.append("ref")
    if needs(config, "values"):
        names.append("critic")
    if config.reward.model_enable:
        names.append("reward model")
    return names


def memory_lines(config: PPOConfig, workers: int) -> list[str]:
    """Bytes of weights, gradients and optimizer state per rank; activations and caches come on top."""
    numbers = parameters(description(config.actor_rollout_ref.model, "actor_rollout_ref.model"))
    if numbers is None:
        return ["memory      unknown: the model's weights are not on this machine yet"]
    actor = config.actor_rollout_ref.actor
    stored = SIZES[actor.fsdp_config.model_dtype]
    copies = {"adamw": 4, "sgd": 2}[actor.optim.name]  # weights, gradients and the optimizer's moments
    train = numbers * stored * copies / workers
    rollout = config.actor_rollout_ref.rollout
    engine = numbers * SIZES[rollout.dtype] / rollout.tensor_model_parallel_size
    return [
        f"memory      {numbers / 1e6:.0f} M parameters; a rank holds {train / 1e9:.2f} GB of weights, "
        f"gradients and optimizer state and {engine / 1e9:.2f} GB of engine weights, "
        "activations and KV cache on top"
    ]


def parameters(folder: Path) -> int | None:
    """Parameters of a model from the headers of its safetensors files; None where there are none."""
    count = 0
    for file in folder.glob("*.safetensors"):
        with safetensors.safe_open(file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                size = 1
                for length in tensors.get_slice(name).get_shape():
                    size *= length
                count += size
    return count or None
