"""What the rank processes run: engines built from configs, steps taken, results returned as plain values."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from rl_workers.config import FSDPConfig, ModelConfig, OptimConfig
from rl_workers.engine import FSDPEngine
from rl_workers.layout import build_layout
from rl_workers.loading import build_on_meta
from rl_workers.micro_batches import plan_micro_batches
from rl_workers.models import PolicyModel
from rl_workers.packing import pack_rows, pad_rows, tabulate_rows

FLOAT32 = FSDPConfig(compute_dtype="float32")


def no_new(name: str, shape: torch.Size) -> torch.Tensor:
    raise AssertionError(f"{name} should have been in the files")


def policy_engine(
    path: str, *, fsdp: FSDPConfig = FLOAT32, sp: int = 1, optim: OptimConfig | None = None, **model: Any
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
        new=no_new,
        optim=optim,
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
    """Steps on ``sum(-advantage * log_prob * weight)``; the loss per step, the first gradient, the last weights."""
    built = policy_engine(path, use_remove_padding=form != "padded", **engine)
    mine = my_rows(batch, built.layout)
    losses, count = [], 0
    grads: dict[str, torch.Tensor] = {}
    original = built._clip

    def clip() -> float:
        if not grads:
            for name, p in built.module.named_parameters():
                if p.grad is not None:
                    grads[name] = p.grad.full_tensor().clone()
        return original()

    built._clip = clip  # type: ignore[method-assign]
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
        torch.distributed.all_reduce(total)
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
