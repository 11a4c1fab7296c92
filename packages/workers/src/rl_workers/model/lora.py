"""Low-rank adapters by peft: injected into a model before it is filled, and the only part that trains."""

from __future__ import annotations

import math
import zlib
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl_workers.config import ModelConfig
from rl_workers.errors import WorkerConfigError
from rl_workers.model.building import Initialiser
from rl_workers.model.heads import SCALAR_HEADS

ADAPTER = "default"
_MARK = ".lora_"


def add_adapters(lm: PreTrainedModel, config: ModelConfig) -> dict[str, Any]:
    """Give a meta model its adapters, freeze the rest, and return peft's configuration of them.

    A classifier's head, new or not, has no adapter and is trained as it is: it is what the adapters serve.

    Raises:
        WorkerConfigError: peft is not installed, or no module has one of the target names.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise WorkerConfigError('model.lora_rank > 0 needs peft: pip install "rl-workers[lora]"') from error
    targets, every = config.target_modules, config.target_modules == ["all-linear"]
    heads = [name for name in SCALAR_HEADS if hasattr(lm, name)]
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=cast(int, config.lora_alpha),
        target_modules="all-linear" if every else targets,
        exclude_modules=heads if every and heads else None,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        inject_adapter_in_model(lora, lm, ADAPTER, low_cpu_mem_usage=True)
    except ValueError as error:
        raise WorkerConfigError(f"model.target_modules={targets}: {error}") from error
    for name, parameter in lm.named_parameters():
        parameter.requires_grad_(_MARK in name or name.partition(".")[0] in SCALAR_HEADS)
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


def with_adapters(new: Initialiser, seed: int) -> Initialiser:
    """An initialiser that starts adapters, and leaves other parameters to ``new``."""

    def start(name: str, shape: torch.Size) -> Tensor:
        return initial_adapter(name, shape, seed) if is_adapter(name) else new(name, shape)

    return start


def is_adapter(name: str) -> bool:
    """Whether a parameter's name is that of an adapter."""
    return _MARK in name


def base_name(name: str) -> str:
    """The name that a wrapped parameter had before adapters were injected."""
    return name.replace(".base_layer.", ".")
