"""Low-rank adapters by peft: injected before sharding, trained alone, exported merged or alone."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rl_workers.config import ModelConfig
from rl_workers.errors import ModelSupportError, WorkerConfigError
from rl_workers.layout import with_local

ADAPTER = "default"
_MARK = ".lora_"


def add_adapters(lm: PreTrainedModel, config: ModelConfig) -> dict[str, Any]:
    """Give a meta model its adapters, freeze the rest, and return peft's configuration of them.

    Raises:
        WorkerConfigError: peft is not installed, or no module has one of the target names.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise WorkerConfigError('model.lora_rank > 0 needs peft: pip install "rl-workers[lora]"') from error
    targets = config.target_modules
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=cast(int, config.lora_alpha),
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        inject_adapter_in_model(lora, lm, ADAPTER, low_cpu_mem_usage=True)
    except ValueError as error:
        raise WorkerConfigError(f"model.target_modules={targets}: {error}") from error
    for name, parameter in lm.named_parameters():
        parameter.requires_grad_(_MARK in name)
        if _MARK in name and parameter.dtype != lm.dtype:
            parameter.data = parameter.data.to(lm.dtype)
    lm.train(False)
    described = cast(Any, lora).to_dict()
    return {k: sorted(v) if isinstance(v, set) else getattr(v, "value", v) for k, v in described.items()}


def initial_adapter(name: str, shape: torch.Size, seed: int) -> Tensor:
    """A ~ uniform as peft has it, B = 0: the adapted model starts as the model. The same on every rank."""
    if ".lora_B." in name:
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
    bound = 1.0 / math.sqrt(shape[1])  # kaiming_uniform with a = sqrt(5)
    return (torch.rand(shape, generator=generator) * 2.0 - 1.0) * bound


def is_adapter(name: str) -> bool:
    """Whether a parameter's name is that of an adapter."""
    return _MARK in name


def base_name(name: str) -> str:
    """The name that a wrapped parameter had before adapters were injected."""
    return name.replace(".base_layer.", ".")


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
