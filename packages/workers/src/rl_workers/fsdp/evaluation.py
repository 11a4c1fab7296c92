"""Forward passes of one's own through an FSDP engine's module, for workers that want more than its head."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from rl_workers.compute.packing import PackedBatch
from rl_workers.fsdp.engine import FSDPEngine


def evaluate_rows(
    engine: FSDPEngine,
    batches: Iterable[PackedBatch],
    like: Tensor,
    run: Callable[[PackedBatch], tuple[Tensor, ...]],
    names: tuple[str, ...],
) -> dict[str, Tensor]:
    """Run micro-batches without gradients and scatter what ``run`` returns to ``[B, R]`` float32 on the CPU.

    Positions that ``response_mask`` leaves out are 0.
    """
    out = {name: torch.zeros(like.shape, dtype=torch.float32) for name in names}
    with engine.evaluation():
        for batch in batches:
            for name, values in zip(names, run(batch), strict=True):
                batch.scatter(values.float().cpu(), out[name])
    return out
