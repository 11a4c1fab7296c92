"""A stream of whole tensors as a Hugging Face folder: safetensors in parts, configuration, tokenizer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

logger = logging.getLogger(__name__)

_PART_BYTES = 2 << 30


def write_model(
    weights: Iterator[tuple[str, Tensor]], lm: PreTrainedModel, source: str, path: str, dtype: torch.dtype
) -> None:
    """Write a model so that ``from_pretrained`` loads it. Collective; rank 0 writes.

    Args:
        weights: whole tensors in ``dtype`` under the model's names, a tied one once; on every rank.
        lm: the model that they belong to, with or without memory: its configuration is written.
        source: the folder the model came from: its tokenizer is copied.
        path: the folder to write.
    """
    folder = Path(path)
    if dist.get_rank() != 0:
        for _ in weights:
            pass
    else:
        folder.mkdir(parents=True, exist_ok=True)
        _write_parts(weights, folder)
        _write_configuration(lm, source, folder, dtype)
    dist.barrier()


def write_adapter(weights: Iterator[tuple[str, Tensor]], peft_config: Mapping[str, Any], path: str) -> None:
    """Write whole adapters under peft's names, as peft loads them. Collective; rank 0 writes."""
    tensors = {name: tensor.cpu() for name, tensor in weights}
    if dist.get_rank() == 0:
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(dict(peft_config), indent=1))
    dist.barrier()


def _write_parts(stream: Iterator[tuple[str, Tensor]], folder: Path) -> None:
    """Files of at most about 2 GB, renamed when their number is known."""
    parts: list[dict[str, Tensor]] = [{}]
    names: list[list[str]] = []
    held = total = 0
    for name, tensor in stream:
        size = tensor.numel() * tensor.element_size()
        if parts[-1] and held + size > _PART_BYTES:
            names.append(_write_part(parts.pop(), folder, len(names)))
            parts.append({})
            held = 0
        parts[-1][name] = tensor.cpu().contiguous()
        held += size
        total += size
    names.append(_write_part(parts[-1], folder, len(names)))
    index: dict[str, str] = {}
    for number, keys in enumerate(names):
        final = (
            f"model-{number + 1:05d}-of-{len(names):05d}.safetensors" if names[1:] else "model.safetensors"
        )
        (folder / f"part-{number}").rename(folder / final)
        index |= dict.fromkeys(keys, final)
    if names[1:]:
        described = {"metadata": {"total_size": total}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(described, indent=1))


def _write_part(tensors: dict[str, Tensor], folder: Path, number: int) -> list[str]:
    save_file(tensors, folder / f"part-{number}", metadata={"format": "pt"})
    return list(tensors)


def _write_configuration(lm: PreTrainedModel, source: str, folder: Path, dtype: torch.dtype) -> None:
    config = lm.config.__class__.from_dict(lm.config.to_dict())
    config.dtype = dtype
    config.architectures = [type(lm).__name__]
    config.save_pretrained(folder)
    if lm.can_generate() and lm.generation_config is not None:
        lm.generation_config.save_pretrained(folder)
    try:
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    except (OSError, ValueError) as error:
        logger.warning("%s has no tokenizer to export: %s", source, error)
