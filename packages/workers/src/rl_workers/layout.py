"""Where a rank stands: its device, the mesh that shards the model, its sequence-parallel group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from rl_workers.errors import WorkerConfigError


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """``auto`` is the GPU of this local rank where there is one, and the CPU elsewhere."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", local_rank % max(torch.cuda.device_count(), 1))


def backend_for(device: torch.device) -> str:
    """The process group's back end: gloo for CPU tensors, nccl besides where the model is on a GPU."""
    return "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"


def with_local(like: DTensor, local: Tensor) -> DTensor:
    """A DTensor with another local part, left on its device (``from_local`` would move it to the mesh's)."""
    return DTensor(local, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Layout:
    """Rank, meshes and groups of one engine. Ranks of a sequence-parallel group are consecutive."""

    device: torch.device
    rank: int
    world_size: int
    mesh: DeviceMesh
    sp_size: int
    sp_group: dist.ProcessGroup | None

    @property
    def dp_rank(self) -> int:
        """Which part of a batch this rank computes."""
        return self.rank // self.sp_size

    @property
    def sp_rank(self) -> int:
        """Which part of each sequence this rank computes."""
        return self.rank % self.sp_size

    @property
    def shard_group(self) -> dist.ProcessGroup:
        """The ranks that together hold the weights once."""
        return self.mesh.get_group(self.mesh.ndim - 1)

    @property
    def is_collect(self) -> bool:
        """Whether this rank's result stands for its sequence-parallel group."""
        return self.sp_rank == 0

    def max_over_ranks(self, value: int) -> int:
        """The largest value of any rank."""
        found = torch.tensor(value, device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return int(found)


def build_layout(device: torch.device, fsdp_size: int = -1, sp_size: int = 1) -> Layout:
    """Build the meshes of the default process group (which must exist).

    Raises:
        WorkerConfigError: a size does not divide the number of ranks.
    """
    world = dist.get_world_size()
    shard = world if fsdp_size == -1 else min(fsdp_size, world)
    for key, size in (("fsdp_config.fsdp_size", shard), ("ulysses_sequence_parallel_size", sp_size)):
        if world % size:
            raise WorkerConfigError(f"{key}={size} does not divide the {world} ranks: choose a divisor")
    if shard == world:
        mesh = init_device_mesh(device.type, (world,), mesh_dim_names=("shard",))
    else:
        names = ("replicate", "shard")
        mesh = init_device_mesh(device.type, (world // shard, shard), mesh_dim_names=names)
    group = None
    if sp_size > 1:
        names = ("dp", "sp")
        group = init_device_mesh(device.type, (world // sp_size, sp_size), mesh_dim_names=names).get_group(
            "sp"
        )
    return Layout(device, dist.get_rank(), world, mesh, sp_size, group)
