"""The policy's weights as one batch, to be sent from trainer processes to engines in other processes.

The object store carries them: within a node they are mapped from shared memory, between nodes sent once. On
GPUs of one machine, `rl_rollout.WeightSender` moves them without the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import Tensor

from rl_protocol import DataProto
from rl_rollout.weights.sync import NamedTensor


def pack_weights(weights: Iterable[NamedTensor], keep: bool) -> DataProto:
    """Consume a stream of full weights.

    Args:
        weights: (name, tensor); gathering them is collective, so that every rank consumes them.
        keep: whether this rank is the one that sends.

    Returns:
        One row `bytes` uint8 `[1, N]`, or no row `[0, N]` where `keep` is False; `meta_info["weights"]` says
        which tensors lie in it, in order.
    """
    layout, parts = [], []
    for name, tensor in weights:
        layout.append((name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
        if keep:
            parts.append(tensor.detach().cpu().contiguous().flatten().view(torch.uint8))
    size = sum(math.prod(shape) * _dtype(kind).itemsize for _, shape, kind in layout)
    data = torch.cat(parts)[None] if keep else torch.empty(0, size, dtype=torch.uint8)
    return DataProto.from_dict({"bytes": data}, meta_info={"weights": layout})


def unpack_weights(packed: DataProto) -> Iterator[NamedTensor]:
    """The tensors of `pack_weights`, as views of its memory that must not be written to."""
    data = cast(dict[str, Tensor], packed.batch)["bytes"][0]
    start = 0
    for name, shape, kind in packed.meta_info["weights"]:
        dtype = _dtype(kind)
        end = start + math.prod(shape) * dtype.itemsize
        part = data[start:end]
        # A tensor of another size may have left the next one at an odd place.
        aligned = part if part.storage_offset() % dtype.itemsize == 0 else part.clone()
        yield name, aligned.view(dtype).view(shape)
        start = end


def _dtype(name: str) -> torch.dtype:
    return cast(torch.dtype, getattr(torch, name))
