"""Buffers of a model that was built without memory: stored ones from its files, the others computed."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl_workers.errors import ModelSupportError
from rl_workers.model.weight_files import WeightSource


def fill_buffers(lm: PreTrainedModel, source: WeightSource, device: torch.device) -> None:
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
