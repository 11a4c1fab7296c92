"""Building a model on no memory, and filling each rank's shard straight from safetensors files."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from transformers import AutoConfig, PreTrainedModel

from rl_workers.attention import ATTENTION_NAME, register_packed_attention
from rl_workers.config import ModelConfig
from rl_workers.errors import CheckpointError, ModelSupportError
from rl_workers.layout import with_local

logger = logging.getLogger(__name__)

Initialiser = Callable[[str, torch.Size], Tensor]
"""Makes the full value of a parameter that the files do not hold: a new head, an adapter."""


def nothing_new(name: str, shape: torch.Size) -> Tensor:
    """The initialiser of a model all of whose parameters come from its files."""
    raise CheckpointError(f"the model's files have no tensor for {name} {tuple(shape)}")


def build_on_meta(
    auto_class: Any, config: ModelConfig, dtype: torch.dtype, **overrides: Any
) -> PreTrainedModel:
    """The model of ``config.path`` without storage, in eval mode: dropout has no place in log-probabilities.

    Raises:
        CheckpointError: the folder holds no model configuration.
        ModelSupportError: the model does not use transformers' attention interface.
    """
    register_packed_attention()
    if not (Path(config.path) / "config.json").is_file():
        raise CheckpointError(
            f"{config.path!r} has no config.json: model.path must be a Hugging Face model's folder"
        )
    hf_config = AutoConfig.from_pretrained(
        config.path, trust_remote_code=config.trust_remote_code, **overrides
    )
    attention = ATTENTION_NAME if config.use_remove_padding else _padded_attention(hf_config)
    with torch.device("meta"):
        model = auto_class.from_config(
            hf_config, dtype=dtype, attn_implementation=attention, trust_remote_code=config.trust_remote_code
        )
    if config.use_remove_padding and not getattr(model, "_supports_attention_backend", False):
        raise ModelSupportError(
            f"{type(model).__name__} ({config.path!r}) does not use transformers' attention interface, which "
            "packed rows need: set model.use_remove_padding=false"
        )
    model.eval()
    return cast(PreTrainedModel, model)


def _padded_attention(hf_config: Any) -> str:
    """sdpa, except where it would silently leave out a cap on the attention's logits."""
    return "eager" if getattr(hf_config.get_text_config(), "attn_logit_softcapping", None) else "sdpa"


class WeightSource:
    """Tensors of a model's folder by the model's names, read slice by slice."""

    def __init__(self, path: str, lm: PreTrainedModel) -> None:
        self._path = Path(path)
        self._files = self._index()
        self._handles: dict[str, Any] = {}
        self._prefix = f"{lm.base_model_prefix}." if lm.base_model_prefix else ""

    def _index(self) -> dict[str, str]:
        index = self._path / "model.safetensors.index.json"
        if index.is_file():
            return cast(dict[str, str], json.loads(index.read_text())["weight_map"])
        single = self._path / "model.safetensors"
        if not single.is_file():
            raise CheckpointError(
                f"{self._path} has neither model.safetensors nor its index: convert the model first"
            )
        with safe_open(single, framework="pt") as handle:
            return dict.fromkeys(handle.keys(), single.name)

    def find(self, name: str) -> str | None:
        """The file's name of a tensor: as it is, or with or without the body's prefix."""
        plain = name.replace(".base_layer.", ".")
        for candidate in (plain, self._prefix + plain, plain.removeprefix(self._prefix)):
            if candidate in self._files:
                return candidate
        return None

    def read(self, key: str, rows: slice | None = None) -> Tensor:
        """A tensor, or some of its rows; only those bytes are read."""
        name = self._files[key]
        if name not in self._handles:
            self._handles[name] = safe_open(self._path / name, framework="pt")
        handle = self._handles[name]
        if rows is None:
            return cast(Tensor, handle.get_tensor(key))
        return cast(Tensor, handle.get_slice(key)[rows])


def shard_rows(parameter: DTensor) -> slice:
    """The rows of dimension 0 that this rank holds."""
    total = parameter.shape[0]
    for dim, placement in enumerate(parameter.placements):
        if isinstance(placement, Shard):
            size = -(-total // parameter.device_mesh.size(dim))
            start = min(parameter.device_mesh.get_local_rank(dim) * size, total)
            return slice(start, min(start + size, total))
    return slice(0, total)


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
    _fill_buffers(lm, source, device)


def _own_rows(
    parameter: DTensor, key: str, source: WeightSource, full: dict[str, Tensor] | None, new: Initialiser
) -> Tensor:
    rows = shard_rows(parameter)
    if full is not None and key.replace(".base_layer.", ".") in full:
        value = full[key.replace(".base_layer.", ".")].contiguous()
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
    body = [name for name, _ in lm.base_model.named_parameters() if ".lora_" not in name]
    wanted = [f"{source._prefix}{name}" for name in body] if lm.base_model is not lm else body
    if all(source.find(name) is not None for name in wanted):
        return None
    logger.info("weights of %s need conversion: rank 0 loads and broadcasts them", path)
    shapes = {
        name.replace(".base_layer.", "."): p for name, p in lm.named_parameters() if ".lora_" not in name
    }
    if dist.get_rank() == 0:
        loaded = type(lm).from_pretrained(path, config=lm.config, dtype=lm.dtype).state_dict()
        return {name: loaded[name] for name in shapes}
    return {name: torch.empty(p.shape, dtype=p.dtype) for name, p in shapes.items()}


def _fill_buffers(lm: PreTrainedModel, source: WeightSource, device: torch.device) -> None:
    """Stored buffers from the files, computed ones (rotary frequencies) by the model's own initialisation.

    Computed buffers are poisoned first, because one that nobody computes would look like a plausible number.
    """
    for prefix, owner in lm.named_modules():
        computed = []
        for name, buffer in list(owner.named_buffers(recurse=False)):
            full_name = f"{prefix}.{name}" if prefix else name
            stored = source.find(full_name) if name not in owner._non_persistent_buffers_set else None
            if stored is not None:
                setattr(owner, name, source.read(stored).to(device, buffer.dtype))
                continue
            poison = float("nan") if buffer.is_floating_point() else 0
            setattr(owner, name, torch.full(buffer.shape, poison, dtype=buffer.dtype, device=device))
            computed.append((full_name, name))
        if computed:
            _compute_buffers(lm, owner)
            _check_computed(owner, computed)


def _compute_buffers(lm: PreTrainedModel, owner: nn.Module) -> None:
    """Run the model's initialisation of one module, whose loaded parameters it must not touch."""
    loaded = owner._parameters
    try:
        owner._parameters = {
            name: None if p is None else nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="meta"))
            for name, p in loaded.items()
        }
        with torch.no_grad():
            cast(Any, lm)._init_weights(owner)
    finally:
        owner._parameters = loaded


def _check_computed(owner: nn.Module, names: list[tuple[str, str]]) -> None:
    for full_name, name in names:
        buffer = cast(Tensor, getattr(owner, name))
        if not buffer.is_floating_point() or bool(buffer.isnan().any()):
            raise ModelSupportError(
                f"buffer {full_name} of {type(owner).__name__} is not in the files and not computed: "
                "it cannot start from its folder"
            )
