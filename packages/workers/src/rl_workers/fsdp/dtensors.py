"""DTensors by the part of them that lies on this rank."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


def with_local(like: DTensor, local: Tensor) -> DTensor:
    """A DTensor with another local part, left on its device (``from_local`` would move it to the mesh's)."""
    return DTensor(local, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def shard_rows(parameter: DTensor) -> slice:
    """The rows of dimension 0 that this rank holds."""
    total = parameter.shape[0]
    for dim, placement in enumerate(parameter.placements):
        if isinstance(placement, Shard):
            size = -(-total // parameter.device_mesh.size(dim))
            start = min(parameter.device_mesh.get_local_rank(dim) * size, total)
            return slice(start, min(start + size, total))
    return slice(0, total)
