"""Full weights out of FSDP2 shards: cast, then gathered in buckets, one tensor at a time to the consumer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from rl_rollout.weights.host_memory import HostRoom

DEFAULT_BUCKET_BYTES = 32 << 20

NamedTensor = tuple[str, Tensor]


def stream_weights(
    module: nn.Module, dtype: torch.dtype, bucket_bytes: int = DEFAULT_BUCKET_BYTES
) -> Iterator[NamedTensor]:
    """Yield every parameter of `module` once, full and in `dtype`, in order of definition.

    Collective over the shards' ranks: all must consume in step. A parameter is cast while sharded, so
    half the bytes travel for bfloat16. Small parameters are gathered together in buckets of about
    `bucket_bytes`; one that is larger goes alone. A yielded tensor may be kept; nothing writes to it
    later. Tied parameters appear once, under their first name.
    """
    yield from gather_named(named_weights(module), dtype, bucket_bytes)


def named_weights(module: nn.Module) -> Iterator[NamedTensor]:
    """Parameters under their Hugging Face names, without the prefixes that wrappers add."""
    for name, parameter in module.named_parameters():
        yield hf_name(name), parameter.detach()


def hf_name(name: str) -> str:
    """A parameter's name in the checkpoint: no activation-checkpoint or compile wrappers in it."""
    return name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")


@torch.no_grad()
def gather_named(
    weights: Iterator[NamedTensor],
    dtype: torch.dtype,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    room: HostRoom | None = None,
) -> Iterator[NamedTensor]:
    """The stream behind `stream_weights`, for any iterator of named tensors or DTensors.

    With `room`, ranks of one host put the tensors together in memory they share, and a yielded tensor is only
    valid until the next is drawn.
    """
    bucket: list[_Shard] = []
    held = 0
    for name, tensor in weights:
        wanted = dtype if tensor.is_floating_point() else tensor.dtype
        if not isinstance(tensor, DTensor) or not _bucketable(tensor):
            yield from _gather_bucket(bucket, room)
            bucket, held = [], 0
            cast = tensor.to(wanted)
            yield name, cast.full_tensor() if isinstance(cast, DTensor) else cast
            continue
        shard = _Shard.of(name, tensor, wanted)
        size = shard.chunk * shard.ranks * wanted.itemsize
        if bucket and (held + size > bucket_bytes or not shard.joins(bucket[0])):
            yield from _gather_bucket(bucket, room)
            bucket, held = [], 0
        bucket.append(shard)
        held += size
    yield from _gather_bucket(bucket, room)


@dataclass
class _Shard:
    """One parameter's local piece, and the `chunk` of elements each rank gives, padding included."""

    name: str
    shape: torch.Size
    local: Tensor
    dtype: torch.dtype
    chunk: int
    group: dist.ProcessGroup
    ranks: int

    @classmethod
    def of(cls, name: str, tensor: DTensor, dtype: torch.dtype) -> _Shard:
        mesh, dim = tensor.device_mesh, _shard_dim(tensor)
        ranks = mesh.size(dim)
        chunk = -(-tensor.shape[0] // ranks) * tensor.shape[1:].numel()
        return cls(name, tensor.shape, tensor.to_local(), dtype, chunk, mesh.get_group(dim), ranks)

    def joins(self, other: _Shard) -> bool:
        """Whether both can travel in one buffer."""
        return self.group is other.group and self.dtype == other.dtype

    def full(self, gathered: Tensor, start: int) -> Tensor:
        """The whole tensor out of `gathered` [ranks, bucket] where its chunk begins at `start`."""
        pieces = gathered[:, start : start + self.chunk]
        return pieces.reshape(-1, *self.shape[1:])[: self.shape[0]]


def _bucketable(tensor: DTensor) -> bool:
    """Whether a tensor is cut along its first dimension over exactly one mesh dimension."""
    sharded = [p for p in tensor.placements if not p.is_replicate()]
    return len(sharded) == 1 and type(sharded[0]) is Shard and sharded[0].dim == 0


def _shard_dim(tensor: DTensor) -> int:
    return next(i for i, p in enumerate(tensor.placements) if not p.is_replicate())


def _gather_bucket(bucket: list[_Shard], room: HostRoom | None) -> Iterator[NamedTensor]:
    """Gather a bucket in one collective and yield its tensors."""
    if not bucket:
        return
    first = bucket[0]
    if room is not None and first.local.device.type == "cpu" and first.ranks > 1:
        size = sum(shard.chunk for shard in bucket) * first.ranks * first.dtype.itemsize
        buffer = room.buffer(first.group, size)
        if buffer is not None:
            yield from _put_together(bucket, buffer.view(first.dtype))
            return
    yield from _gather_anew(bucket)


def _put_together(bucket: list[_Shard], whole: Tensor) -> Iterator[NamedTensor]:
    """Each rank casts its pieces straight into the shared memory, where the tensors stand one by one."""
    group, ranks = bucket[0].group, bucket[0].ranks
    starts = list(accumulate((shard.chunk * ranks for shard in bucket), initial=0))
    for shard, start in zip(bucket, starts, strict=False):
        at = start + dist.get_rank(group) * shard.chunk
        whole[at : at + shard.local.numel()].copy_(shard.local.reshape(-1))
    dist.barrier(group)
    for shard, start in zip(bucket, starts, strict=False):
        yield shard.name, whole[start : start + shard.shape.numel()].view(shard.shape)


def _gather_anew(bucket: list[_Shard]) -> Iterator[NamedTensor]:
    """Gather into new memory, which whoever gets the tensors may keep.

    Each rank casts its pieces straight into its own row of the result, so nothing is held twice.
    """
    first = bucket[0]
    starts = list(accumulate((shard.chunk for shard in bucket), initial=0))
    gathered = first.local.new_empty((first.ranks, starts.pop()), dtype=first.dtype)
    own = gathered[dist.get_rank(first.group)]
    for shard, start in zip(bucket, starts, strict=True):
        own[start : start + shard.local.numel()].copy_(shard.local.reshape(-1))
    dist.all_gather_into_tensor(gathered.view(-1), own, group=first.group)
    for shard, start in zip(bucket, starts, strict=True):
        yield shard.name, shard.full(gathered, start)
