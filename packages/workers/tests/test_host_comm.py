"""Collectives through shared memory: what gloo would give, at every size, or gloo itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_exact_gradients import close
from workers_models import make_batch
from workers_programs import train_steps
from workers_ranks import run_ranks

from rl_workers import host_comm

SIZES = (3, 1000, 7, 4096, 4096, 12)  # grows and shrinks, odd and even turns
FOREIGN = 1  # the rank whose memory the others cannot map


def exchange_as_fsdp_does() -> bool:
    """Gather and reduce tensors of many sizes both ways, in FSDP's order of calls; whether all are equal."""
    group = dist.group.WORLD
    assert group is not None
    gather, scatter = host_comm.HostAllGather(group), host_comm.HostReduceScatter(group)
    rank, ranks, same = dist.get_rank(), dist.get_world_size(), True
    g = torch.Generator().manual_seed(rank)
    for turn, size in enumerate(SIZES):
        dtype = torch.bfloat16 if turn % 2 else torch.float32
        mine = torch.randn(size, generator=g).to(dtype)
        out = gather.allocate((size * ranks,), dtype=dtype, device=mine.device)
        out.chunk(ranks)[rank].copy_(mine)
        gather(out, out.chunk(ranks)[rank], group=group)
        parts = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(parts, mine)
        same &= torch.equal(out, torch.cat(parts))
        whole = torch.randn(size * ranks, generator=g)
        block = scatter.allocate((size * ranks,), dtype=torch.float32, device=whole.device)
        block.copy_(whole)
        shard = scatter.allocate((size,), dtype=torch.float32, device=whole.device)
        scatter(shard, block, group=group, op=dist.ReduceOp.SUM)
        dist.all_reduce(whole)
        same &= torch.allclose(shard, whole.chunk(ranks)[rank], rtol=1e-6, atol=1e-6)
    return same


@pytest.mark.parametrize("ranks", [2, 3])
def test_gathers_and_sums_as_gloo_does(tmp_path: Path, ranks: int) -> None:
    assert run_ranks(tmp_path, ranks, exchange_as_fsdp_does) == [True] * ranks


def train_apart(path: str, batch: dict[str, torch.Tensor], apart: bool) -> dict[str, Any]:
    """A step with one rank out of reach, or with none; says whether a custom collective was used."""
    own = os.getpid
    if apart and dist.get_rank() == FOREIGN:
        os.getpid = lambda: 2**30  # no process of this host
    used = []
    original = host_comm.HostReduceScatter.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        used.append(1)
        original(self, *args, **kwargs)

    host_comm.HostReduceScatter.__call__ = call  # type: ignore[method-assign]
    found = train_steps(path, batch, "packed", 4096)
    os.getpid = own
    return found | {"used": bool(used)}


def test_ranks_that_share_no_memory_use_gloo(tiny_model: str, tmp_path: Path) -> None:
    batch = make_batch(groups=2, n=2, prompt=9, response=7, seed=3)
    shared = run_ranks(tmp_path, 2, train_apart, tiny_model, batch, False)
    apart = run_ranks(tmp_path, 2, train_apart, tiny_model, batch, True)
    assert [rank["used"] for rank in shared + apart] == [True, True, False, False]
    close(shared[0], apart[0])
