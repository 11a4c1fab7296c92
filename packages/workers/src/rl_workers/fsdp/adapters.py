"""Sharded adapters: merged into the weights they belong to, or handed to an engine on their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rl_rollout import BaseRollout, FSDPVLLMShardingManager
from rl_rollout.weights.sync import gather_named
from rl_workers.errors import ModelSupportError
from rl_workers.fsdp.dtensors import with_local
from rl_workers.model.lora import ADAPTER, base_name, is_adapter


def base_weights(lm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The model's own parameters, under their own names, without adapters."""
    for name, parameter in lm.named_parameters():
        if not is_adapter(name):
            yield base_name(name), parameter.detach()


def adapter_weights(lm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The adapters under the names that peft's files have."""
    for name, parameter in lm.named_parameters():
        if is_adapter(name):
            yield f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}", parameter.detach()


def merged_weights(lm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The model's own parameters with the adapters added, still sharded: ``W + scale * B A``."""
    adapters = {name: p.detach() for name, p in lm.named_parameters() if is_adapter(name)}
    for name, parameter in lm.named_parameters():
        if is_adapter(name):
            continue
        stem = name.removesuffix(".base_layer.weight")
        down, up = (adapters.get(f"{stem}.lora_{side}.{ADAPTER}.weight") for side in "AB")
        if stem == name or down is None or up is None:
            yield base_name(name), parameter.detach()
            continue
        layer = cast(Any, lm.get_submodule(stem))
        if getattr(layer, "fan_in_fan_out", False):
            raise ModelSupportError(
                f"{stem} stores its weight transposed: merging its adapter is not supported"
            )
        yield base_name(name), _add_product(parameter.detach(), up, down, layer.scaling[ADAPTER])


def _add_product(weight: Tensor, up: Tensor, down: Tensor, scale: float) -> Tensor:
    """``weight + scale * up @ down``; of a sharded weight only the local rows are computed."""
    if not isinstance(weight, DTensor):
        return weight + scale * (up @ down)
    rows = cast(DTensor, up).to_local() @ cast(DTensor, down).full_tensor()
    local = weight.to_local() + scale * rows
    return with_local(weight, local)


@runtime_checkable
class TakesAdapter(Protocol):
    """An engine that computes with an adapter beside its weights."""

    def load_adapter(self, tensors: Mapping[str, Tensor], peft_config: Mapping[str, Any]) -> None:
        """Use this adapter from the next request on."""


class AdapterShardingManager(FSDPVLLMShardingManager):
    """Pushes the base weights once, then the adapter alone; merged weights to an engine without adapters."""

    def __init__(self, module: nn.Module, rollout: BaseRollout, peft_config: Mapping[str, Any]) -> None:
        super().__init__(module, rollout)
        self.peft_config = peft_config
        self._base_pushed = rollout.config.load_format != "dummy"

    def push_weights(self) -> None:
        """Stream what changed since the last push; collective over the module's ranks."""
        how = getattr(torch, self.rollout.config.dtype), self.bucket_bytes, self.room
        if not self.rollout.config.lora_rank or not isinstance(self.rollout, TakesAdapter):
            self.rollout.update_weights(gather_named(merged_weights(self.module), *how))
            return
        if not self._base_pushed:
            self.rollout.update_weights(gather_named(base_weights(self.module), *how))
            self._base_pushed = True
        adapter = dict(gather_named(adapter_weights(self.module), torch.float32, self.bucket_bytes))
        self.rollout.load_adapter(adapter, self.peft_config)
