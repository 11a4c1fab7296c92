"""Adapters (LoRA, Hu et al. 2021) of a sharded peft model: merged into a weight stream, or on their own.

peft itself is not imported: its layers are known by their attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rl_rollout.weights.host_memory import HostRoom
from rl_rollout.weights.sync import NamedTensor, gather_named, hf_name, named_weights

_WRAPPER = "base_model.model."


def has_adapter(module: nn.Module) -> bool:
    """Whether the module holds LoRA weights."""
    return any(".lora_A." in name for name, _ in module.named_parameters())


def stream_base_weights(
    module: nn.Module, dtype: torch.dtype, bucket_bytes: int, room: HostRoom | None = None
) -> Iterator[NamedTensor]:
    """The frozen model under its own names, as `gather_named` does, without the adapter."""
    base = ((_base_name(name), tensor) for name, tensor in named_weights(module) if ".lora_" not in name)
    return gather_named(base, dtype, bucket_bytes, room)


@torch.no_grad()
def stream_merged_weights(
    module: nn.Module, dtype: torch.dtype, bucket_bytes: int, room: HostRoom | None = None
) -> Iterator[NamedTensor]:
    """The model with its adapter added in: W + scaling * B A, added in the adapter's own precision."""
    layers = {
        _base_name(hf_name(f"{name}.base_layer.weight")): layer
        for name, layer in module.named_modules()
        if hasattr(layer, "lora_A") and hasattr(layer, "scaling")
    }
    for name, tensor in stream_base_weights(module, _merge_dtype(module), bucket_bytes, room):
        layer = layers.get(name)
        yield name, (tensor if layer is None else tensor + _delta(layer)).to(dtype)


@torch.no_grad()
def adapter_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The adapter's full tensors under the names peft saves. Collective over the shards' ranks."""
    return {
        name.replace(f".{_adapter_name(module)}.", "."): _full(tensor)
        for name, tensor in named_weights(module)
        if ".lora_" in name
    }


def adapter_config(module: nn.Module) -> dict[str, Any]:
    """What an engine must know of the adapter besides its tensors, in peft's terms."""
    config: Any = cast(Any, module).peft_config[_adapter_name(module)]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": int(config.r),
        "lora_alpha": float(config.lora_alpha),
        "use_rslora": bool(getattr(config, "use_rslora", False)),
        "target_modules": sorted(config.target_modules),
        "bias": "none",
    }


def _delta(layer: nn.Module) -> Tensor:
    parts: Any = layer
    name = next(iter(parts.lora_A))
    product = _full(parts.lora_B[name].weight.detach()) @ _full(parts.lora_A[name].weight.detach())
    return cast(Tensor, product * parts.scaling[name])


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _base_name(name: str) -> str:
    return name.removeprefix(_WRAPPER).replace(".base_layer.", ".")


def _adapter_name(module: nn.Module) -> str:
    return str(next(iter(cast(Any, module).peft_config)))


def _merge_dtype(module: nn.Module) -> torch.dtype:
    return next(p.dtype for name, p in module.named_parameters() if ".lora_A." in name)
