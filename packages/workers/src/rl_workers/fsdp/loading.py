"""Filling each rank's part of a sharded model, straight from the safetensors files of its folder."""

from __future__ import annotations

import logging
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rl_workers.errors import CheckpointError
from rl_workers.fsdp.dtensors import shard_rows, with_local
from rl_workers.model.buffers import fill_buffers
from rl_workers.model.building import Initialiser
from rl_workers.model.lora import base_name, is_adapter
from rl_workers.model.weight_files import WeightSource

logger = logging.getLogger(__name__)


def load_weights(
    module: nn.Module, lm: PreTrainedModel, path: str, device: torch.device, new: Initialiser
) -> None:
    """Give every parameter of a sharded meta model its storage and value.

    Where the files use the model's names, each rank reads its own rows and nothing else. Where transformers
    would convert names, rank 0 loads the model by ``from_pretrained`` and broadcasts tensor by tensor.

    Args:
        module: the FSDP root, whose parameters are DTensors on meta.
        lm: the Hugging Face model inside it.
        new: makes what the folder does not hold; raises where it has no rule.
    """
    source = WeightSource(path, lm)
    full = _converted_weights(source, lm, path)
    prefix = next(name for name, child in module.named_children() if child is lm) + "."
    replaced: dict[int, nn.Parameter] = {}
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        if id(parameter) not in replaced:
            key = name.removeprefix(prefix)
            value = _own_rows(cast(DTensor, parameter), key, source, full, new)
            shard = with_local(cast(DTensor, parameter), value.to(device, parameter.dtype))
            replaced[id(parameter)] = nn.Parameter(shard, requires_grad=parameter.requires_grad)
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, replaced[id(parameter)])
    fill_buffers(lm, source, device)


def _own_rows(
    parameter: DTensor, key: str, source: WeightSource, full: dict[str, Tensor] | None, new: Initialiser
) -> Tensor:
    rows = shard_rows(parameter)
    if full is not None and base_name(key) in full:
        value = full[base_name(key)].contiguous()
        dist.broadcast(value, 0)
        return value[rows].clone()
    found = source.find(key)
    if found is None or full is not None:
        return new(key, parameter.shape)[rows].clone()
    value = source.read(found, rows)
    if value.shape[1:] != parameter.shape[1:]:
        raise CheckpointError(
            f"{found} has rows of shape {tuple(value.shape[1:])}, the model's {tuple(parameter.shape[1:])}"
        )
    return value


def _converted_weights(source: WeightSource, lm: PreTrainedModel, path: str) -> dict[str, Tensor] | None:
    """None if the files' names are the model's; else the converted tensors (empty ones except on rank 0)."""
    body = [name for name, _ in lm.base_model.named_parameters() if not is_adapter(name)]
    wanted = [f"{source.prefix}{name}" for name in body] if lm.base_model is not lm else body
    if all(source.find(name) is not None for name in wanted):
        return None
    logger.info("weights of %s need conversion: rank 0 loads and broadcasts them", path)
    shapes = {base_name(name): p for name, p in lm.named_parameters() if not is_adapter(name)}
    if dist.get_rank() == 0:
        loaded = type(lm).from_pretrained(path, config=lm.config, dtype=lm.dtype).state_dict()
        return {name: loaded[name] for name in shapes}
    return {name: torch.empty(p.shape, dtype=p.dtype) for name, p in shapes.items()}
