"""What the rank processes run: engines built from configs, steps taken, results returned as plain values."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from rl_protocol import DataProto
from rl_rollout import RolloutConfig
from rl_workers import (
    ActorConfig,
    ActorRolloutRefConfig,
    ActorRolloutRefWorker,
    CheckpointError,
    CriticConfig,
    CriticWorker,
    FSDPConfig,
    ModelConfig,
    OptimConfig,
    ProfilerConfig,
    RefConfig,
    RewardModelConfig,
    RewardModelWorker,
)
from rl_workers.compute.micro_batches import plan_micro_batches
from rl_workers.compute.packing import pack_rows, pad_rows, tabulate_rows
from rl_workers.fsdp.engine import FSDPEngine
from rl_workers.fsdp.mesh import build_layout
from rl_workers.model.building import build_on_meta, nothing_new
from rl_workers.model.heads import PolicyModel

FLOAT32 = FSDPConfig(compute_dtype="float32")


def policy_engine(
    path: str,
    *,
    fsdp: FSDPConfig = FLOAT32,
    sp: int = 1,
    optim: OptimConfig | None = None,
    grad_clip: float = 0.0,
    **model: Any,
) -> FSDPEngine:
    layout = build_layout(torch.device("cpu"), fsdp.fsdp_size, sp)
    config = ModelConfig(path=path, **model)
    lm = build_on_meta(AutoModelForCausalLM, config, getattr(torch, fsdp.model_dtype))
    optim = optim or OptimConfig(name="sgd", lr=0.1, weight_decay=0.0)
    return FSDPEngine(
        PolicyModel(lm, layout.sp_group),
        path,
        layout,
        fsdp,
        new=nothing_new,
        optim=optim,
        grad_clip=grad_clip,
        checkpoint_layers=config.enable_gradient_checkpointing,
    )


def my_rows(batch: dict[str, torch.Tensor], layout: Any) -> dict[str, torch.Tensor]:
    parts = layout.world_size // layout.sp_size
    return {key: value.tensor_split(parts)[layout.dp_rank] for key, value in batch.items()}


def micro_batches(batch: dict[str, torch.Tensor], form: str, budget: int, layout: Any) -> list[Any]:
    table = tabulate_rows(
        *(batch[k] for k in ("input_ids", "attention_mask", "response_mask", "position_ids"))
    )
    share, padded = form == "shared", form == "padded"
    plan = plan_micro_batches(table, budget, share_prompts=share, padded=padded, agree=layout.max_over_ranks)
    if padded:
        return [pad_rows(table, rows) for rows in plan]
    return [pack_rows(table, rows, share_prompts=share) for rows in plan]


def train_steps(
    path: str, batch: dict[str, torch.Tensor], form: str, budget: int, steps: int = 1, **engine: Any
) -> dict[str, Any]:
    """Steps on a policy-gradient loss; the loss of each, the first gradient, the last weights."""
    built = policy_engine(path, use_remove_padding=form != "padded", **engine)
    mine = my_rows(batch, built.layout)
    losses, count = [], 0
    grads: dict[str, torch.Tensor] = {}
    original = built._grad_norm

    def grad_norm() -> float:
        if not grads:
            for name, p in built.module.named_parameters():
                if p.grad is not None:
                    grads[name] = p.grad.full_tensor().clone()
        return original()

    built._grad_norm = grad_norm  # type: ignore[method-assign]
    for _ in range(steps):
        batches = micro_batches(mine, form, budget, built.layout)
        count = len(batches)
        total = torch.zeros(())

        def loss_fn(b: Any, total: torch.Tensor = total) -> torch.Tensor:
            log_probs, entropy = built.module(b, temperature=0.7, entropy_grad=True)
            if b.is_dummy:
                return (log_probs.sum() + entropy.sum()) * 0.0
            weight = mine["row_weights"][b.rows]
            loss = ((-mine["advantages"][b.rows, b.columns] * log_probs - 0.1 * entropy) * weight).sum()
            total.add_(loss.detach())
            return loss

        built.train_step(batches, loss_fn)
        if built.layout.sp_rank:
            total.zero_()
        dist.all_reduce(total)
        losses.append(float(total))
    weights = {
        n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in built.module.named_parameters()
    }
    plain = {k: v.detach().numpy() for k, v in weights.items()}
    return {
        "losses": losses,
        "grads": {k: v.numpy() for k, v in grads.items()},
        "weights": plain,
        "count": count,
    }


def log_probs(path: str, batch: dict[str, torch.Tensor], form: str, budget: int, **engine: Any) -> Any:
    """Log-probabilities and entropies ``[B, R]`` of this rank's rows."""
    built = policy_engine(path, use_remove_padding=form != "padded", **engine)
    mine = my_rows(batch, built.layout)
    out = torch.zeros(mine["response_mask"].shape), torch.zeros(mine["response_mask"].shape)
    with built.evaluation():
        for b in micro_batches(mine, form, budget, built.layout):
            for values, target in zip(built.module(b), out, strict=True):
                b.scatter(values, target)
    return out[0].numpy(), out[1].numpy()


def make_worker(cls: Any, *args: Any) -> Any:
    """A worker object in this rank's process, initialised."""
    os.environ |= {
        "RANK": str(dist.get_rank()),
        "WORLD_SIZE": str(dist.get_world_size()),
        "LOCAL_RANK": str(dist.get_rank()),
        "LOCAL_WORLD_SIZE": str(dist.get_world_size()),
    }
    worker = cls(*args)
    worker.init_model()
    return worker


def actor_config(path: str, *, lr: float = 0.05, budget: int = 64, **changes: Any) -> ActorRolloutRefConfig:
    """Float32 and SGD, so that results can be compared exactly."""
    config = ActorRolloutRefConfig(
        model=ModelConfig(path=path),
        actor=ActorConfig(
            ppo_max_token_len_per_gpu=budget,
            optim=OptimConfig(name="sgd", lr=lr, weight_decay=0.0),
            fsdp_config=FSDPConfig(compute_dtype="float32"),
        ),
        rollout=RolloutConfig(name="hf", prompt_length=9, response_length=7, dtype="float32"),
        ref=RefConfig(fsdp_config=FSDPConfig(compute_dtype="float32")),
        device="cpu",
    )
    for name, value in changes.items():
        *parents, leaf = name.split("__")
        target: Any = config
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, leaf, value)
    return config


def as_proto(batch: dict[str, torch.Tensor], **meta: Any) -> DataProto:
    return DataProto.from_dict(tensors=batch, meta_info=meta)


def run_actor(
    config: ActorRolloutRefConfig,
    batch: dict[str, torch.Tensor],
    steps: int = 1,
    *,
    role: str = "actor",
    load: str = "",
    save: str = "",
    export: str = "",
    save_at: int = -1,
    load_optimizer: bool = True,
    **save_options: Any,
) -> dict[str, Any]:
    """Log-probabilities, then steps, of this rank's rows; metrics of each step."""
    worker = make_worker(ActorRolloutRefWorker, config, role)
    step0 = worker.load_checkpoint(load, load_optimizer) if load else 0
    mine = my_rows(batch, worker.actor.layout)
    proto = as_proto(mine, temperature=0.7)
    before = worker.compute_log_prob(proto).batch
    metrics = []
    for step in range(steps):
        metrics.append(worker.update_actor(proto).meta_info["metrics"])
        if save and step == (save_at if save_at >= 0 else steps - 1):
            worker.save_checkpoint(save, step + 1, **save_options)
    if save:
        worker.wait_checkpoint()
    after = worker.compute_log_prob(proto).batch
    found = {"step": step0, "metrics": metrics}
    found["before"] = before["old_log_probs"].numpy()
    found["entropy"] = before["entropys"].numpy()
    found["after"] = after["old_log_probs"].numpy()
    if "ref" in role:
        found["ref"] = worker.compute_ref_log_prob(proto).batch["ref_log_prob"].numpy()
    if export:
        worker.export_hf(export)
    return found


def moved_by_nothing(config: ActorRolloutRefConfig, batch: dict[str, torch.Tensor], what: str) -> list[float]:
    """How far the weights move in a step that learns, and then in one from which ``what`` took everything."""
    worker = make_worker(ActorRolloutRefWorker, config, "actor")
    moved = []
    for data in (batch, {**batch, what: torch.zeros_like(batch[what])}):
        before = [p.detach().clone() for p in worker.trained().parameters()]
        worker.update_actor(as_proto(data, temperature=1.0))
        after = worker.trained().parameters()
        moved.append(max(float((a - b).abs().max()) for a, b in zip(after, before, strict=True)))
    return moved


def dying_save(config: ActorRolloutRefConfig, batch: dict[str, torch.Tensor], path: str) -> bool:
    """A second save that fails when half of the files are written; whether it was reported."""
    worker = make_worker(ActorRolloutRefWorker, config, "actor")
    worker.load_checkpoint(path)
    worker.update_actor(as_proto(my_rows(batch, worker.actor.layout), temperature=0.7))
    saved = filesystem.FileSystemWriter.write_data

    def write_data(self: Any, *args: Any) -> Any:
        if dist.get_rank() == 1:
            raise OSError("No space left on device")
        return saved(self, *args)

    filesystem.FileSystemWriter.write_data = write_data  # type: ignore[method-assign]
    try:
        worker.save_checkpoint(path, 2)
    except CheckpointError as error:
        return "No space left" in str(error)
    return False


def make_prompts(rows: int, seed: int = 0) -> DataProto:
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, 100, (rows, 9), generator=g)
    mask = torch.ones_like(ids)
    mask[:1, :4] = 0
    tensors = {
        "input_ids": ids * mask,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp_min(0),
        "seeds": torch.arange(rows),
    }
    return DataProto.from_dict(tensors=tensors)


def with_advantages(generated: DataProto, temperature: float = 1.0) -> DataProto:
    mask = generated.batch["response_mask"]
    extra = DataProto.from_dict(
        tensors={
            "advantages": torch.randn(mask.shape, generator=torch.Generator().manual_seed(0)),
            "row_weights": torch.full((len(generated),), 1.0 / max(1, int(mask.sum()))),
        }
    )
    joined = generated.union(extra)
    joined.meta_info["temperature"] = temperature
    return joined


def rounds(config: ActorRolloutRefConfig, count: int, *, sync: bool = True, export: str = "") -> list[Any]:
    """Generate and update ``count`` times; the metrics of each. ``sync=False`` keeps the engine's weights."""
    worker = make_worker(ActorRolloutRefWorker, config, "actor_rollout_ref")
    metrics = []
    for index in range(count):
        if index and not sync:
            worker._manager.push_weights = lambda: None
        batch = with_advantages(worker.generate_sequences(make_prompts(6)), config.rollout.temperature)
        metrics.append(worker.update_actor(batch).meta_info["metrics"])
    if export:
        worker.export_hf(export)
    worker.rollout.close()
    return metrics


def run_critic(config: CriticConfig, batch: dict[str, torch.Tensor], steps: int, save: str = "") -> Any:
    """Values, then steps towards returns; metrics of each and the last values."""
    worker = make_worker(CriticWorker, config)
    mine = my_rows(batch, worker.critic.layout)
    before = worker.compute_values(as_proto(mine)).batch["values"]
    proto = as_proto(mine | {"values": before, "returns": mine["advantages"]})
    metrics = [worker.update_critic(proto).meta_info["metrics"] for _ in range(steps)]
    if save:
        worker.save_checkpoint(save, steps)
        worker.update_critic(proto)
        worker.load_checkpoint(save)
    after = worker.compute_values(proto).batch["values"].numpy()
    return {"before": before.numpy(), "metrics": metrics, "after": after}


def run_reward(config: RewardModelConfig, data: DataProto) -> Any:
    """Scores of this rank's rows."""
    worker = make_worker(RewardModelWorker, config)
    mine = data.chunk(dist.get_world_size())[dist.get_rank()]
    return worker.compute_rm_score(mine).batch["rm_scores"].numpy()


def run_lora(config: ActorRolloutRefConfig, folder: str, steps: int = 2) -> Any:
    """Rounds with adapters: mismatch, reference and actor before and after, checkpoint and both exports."""
    worker = make_worker(ActorRolloutRefWorker, config, "actor_rollout_ref")
    batch = with_advantages(worker.generate_sequences(make_prompts(6)))
    found: dict[str, Any] = {"batch": {k: v.numpy() for k, v in batch.batch.items()}}
    found["start"] = worker.compute_log_prob(batch).batch["old_log_probs"].numpy()
    metrics = [worker.update_actor(batch).meta_info["metrics"] for _ in range(steps)]
    fresh = with_advantages(worker.generate_sequences(make_prompts(6)))
    found["after"] = worker.compute_log_prob(batch).batch["old_log_probs"].numpy()
    found["ref"] = worker.compute_ref_log_prob(batch).batch["ref_log_prob"].numpy()
    worker.save_checkpoint(f"{folder}/checkpoint", steps)
    worker.export_hf(f"{folder}/merged")
    worker.export_lora(f"{folder}/adapter")
    metrics.append(worker.update_actor(fresh).meta_info["metrics"])
    worker.load_checkpoint(f"{folder}/checkpoint")
    found["restored"] = worker.compute_log_prob(batch).batch["old_log_probs"].numpy()
    found["has_ref_model"] = worker.ref is not None
    return found | {"metrics": metrics}


def profiled_steps(
    config: ActorRolloutRefConfig, batch: dict[str, torch.Tensor], profiler: ProfilerConfig, steps: int
) -> list[str]:
    """The trace of each step, "" where there is none."""
    worker = make_worker(ActorRolloutRefWorker, config, "actor")
    proto = as_proto(my_rows(batch, worker.actor.layout))
    written = []
    for step in range(steps):
        worker.start_profile(profiler, step)
        worker.update_actor(proto)
        written.append(worker.stop_profile())
    return written
