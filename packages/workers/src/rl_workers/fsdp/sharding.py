"""How FSDP cuts a model: which layers move together, in which precision, and by which collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint as checkpoint_activations
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from rl_rollout.precision import agreed_dtype
from rl_workers.config import FSDPConfig
from rl_workers.fsdp.host_comm import reduce_in_place, use_host_memory
from rl_workers.fsdp.mesh import FSDPLayout
from rl_workers.model.heads import HeadedModel


def shard(model: HeadedModel, layout: FSDPLayout, fsdp: FSDPConfig, checkpoint_layers: bool) -> None:
    """Make a meta model's parameters DTensors, in place; collective over the layout's ranks."""
    offload = OffloadPolicy()
    if fsdp.param_offload:
        offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    options: dict[str, Any] = {
        "mesh": layout.mesh,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=getattr(torch, agreed_dtype(fsdp.compute_dtype, layout.device)),
            reduce_dtype=getattr(torch, fsdp.reduce_dtype),
        ),
        "offload_policy": offload,
        "reshard_after_forward": fsdp.reshard_after_forward,
    }
    layers = transformer_layers(model.lm)
    for layer in layers if checkpoint_layers else []:
        checkpoint_activations(layer)
    one_by_one = checkpoint_layers or fsdp.reshard_after_forward or layout.device.type != "cpu"
    for group in [[layer] for layer in layers] if one_by_one else layer_groups(layers, model):
        fully_shard(group, **options)
    fully_shard(model, **options)
    _choose_collectives(model, layout)


def _choose_collectives(model: nn.Module, layout: FSDPLayout) -> None:
    """Sum gradients over ranks; without a GPU, move as few bytes as the ranks' places allow."""
    modules = sharded_modules(model)
    if layout.world_size > 1:
        for module in modules:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    if layout.device.type != "cpu":
        return
    if layout.mesh.size(-1) > 1:
        use_host_memory(modules, layout.shard_group)
    else:
        reduce_in_place(modules)


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """The modules that FSDP gathers and reshards, the root among them."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def transformer_layers(lm: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a Hugging Face model, in order."""
    names = set(getattr(lm, "_no_split_modules", None) or [])
    return [module for module in lm.modules() if type(module).__name__ in names]


def layer_groups(layers: Sequence[nn.Module], root: nn.Module) -> list[list[nn.Module]]:
    """Neighbouring layers, as many together as have no more parameters than ``root`` has besides its layers.

    A group is gathered and reduced at once. On a CPU nothing overlaps with that, and each time the ranks wait
    for the slowest: so seldom is better, as far as it needs no larger buffer than the embedding does.
    """
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    room = sum(p.numel() for p in root.parameters()) - sum(sizes)
    groups: list[list[nn.Module]] = []
    left = 0
    for layer, size in zip(layers, sizes, strict=True):
        if not groups or size > left:
            groups.append([])
            left = room
        groups[-1].append(layer)
        left -= size
    return groups
