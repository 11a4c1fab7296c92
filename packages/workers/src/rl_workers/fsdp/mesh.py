"""The meshes by which FSDP spreads weights over ranks, and the groups that share a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rl_workers.engine.layout import Layout
from rl_workers.errors import WorkerConfigError


@dataclass(frozen=True)
class FSDPLayout(Layout):
    """Besides a rank's place, its meshes and groups. Ranks of a sequence-parallel group are consecutive."""

    mesh: DeviceMesh
    sp_group: dist.ProcessGroup | None

    @property
    def sp_rank(self) -> int:
        """Which part of each sequence this rank computes."""
        return self.rank % self.sp_size

    @property
    def shard_group(self) -> dist.ProcessGroup:
        """The ranks that together hold the weights once."""
        return self.mesh.get_group(self.mesh.ndim - 1)


def build_layout(device: torch.device, fsdp_size: int = -1, sp_size: int = 1) -> FSDPLayout:
    """Build the meshes of the default process group (which must exist).

    Raises:
        WorkerConfigError: a size does not divide the number of ranks.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
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
        by_sequence = init_device_mesh(device.type, (world // sp_size, sp_size), mesh_dim_names=("dp", "sp"))
        group = by_sequence.get_group("sp")
    return FSDPLayout(
        device=device,
        rank=rank,
        world_size=world,
        dp_rank=rank // sp_size,
        is_collect=rank % sp_size == 0,
        sp_size=sp_size,
        mesh=mesh,
        sp_group=group,
    )
