"""Collectives through shared memory: right at every size and speed, or gloo's."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_exact_gradients import close
from workers_models import make_batch
from workers_programs import train_steps
from workers_ranks import run_ranks

from rl_workers import CollectiveError
from rl_workers.fsdp import host_comm

SIZES = (3, 1000, 7, 4096, 4096, 4096, 12)  # grows and shrinks, odd and even turns
FOREIGN = 1  # the rank whose memory the others cannot map


def exchange_as_fsdp_does() -> bool:
    """Gather and reduce tensors of many sizes in FSDP's order of calls; whether every result is right.

    Ranks take turns in being slow to read, and nothing but the collectives holds the others back.
    """
    group = dist.group.WORLD
    assert group is not None
    gather, scatter = host_comm.HostAllGather(group), host_comm.HostReduceScatter(group)
    rank, ranks, same, slow = dist.get_rank(), dist.get_world_size(), True, 0
    block = host_comm.SharedBuffer.block

    def slow_block(buffer: Any, of: int, *args: Any) -> torch.Tensor:
        if of != rank:
            time.sleep(0.02 * (slow == rank))
        return block(buffer, of, *args)

    host_comm.SharedBuffer.block = slow_block  # type: ignore[method-assign]
    for turn, size in enumerate(SIZES):
        slow, dtype = turn % ranks, torch.bfloat16 if turn % 2 else torch.float32
        everyone = [torch.randn(size, generator=seeded(turn, r)).to(dtype) for r in range(ranks)]
        out = gather.allocate((size * ranks,), dtype=dtype, device=everyone[0].device)
        out.chunk(ranks)[rank].copy_(everyone[rank])
        gather(out, out.chunk(ranks)[rank], group=group)
        time.sleep(0.02 * (slow == rank))
        same &= torch.equal(out, torch.cat(everyone))
    for turn, size in enumerate(SIZES):
        slow = turn % ranks
        wholes = [torch.randn(size * ranks, generator=seeded(turn, r)) for r in range(ranks)]
        own = scatter.allocate((size * ranks,), dtype=torch.float32, device=wholes[0].device)
        own.copy_(wholes[rank])
        shard = scatter.allocate((size,), dtype=torch.float32, device=own.device)
        scatter(shard, own, group=group, op=dist.ReduceOp.SUM)
        same &= torch.allclose(shard, sum(wholes).chunk(ranks)[rank], rtol=1e-6, atol=1e-6)  # type: ignore[union-attr]
    return same


def seeded(turn: int, rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 * turn + rank)


@pytest.mark.parametrize("ranks", [2, 3])
def test_gathers_and_sums_while_one_rank_lags(tmp_path: Path, ranks: int) -> None:
    assert run_ranks(tmp_path, ranks, exchange_as_fsdp_does) == [True] * ranks


def refusals(kind: str) -> str:
    """What a rank is told that uses a collective in another order or size than FSDP does today."""
    group = dist.group.WORLD
    assert group is not None
    gather, scatter = host_comm.HostAllGather(group), host_comm.HostReduceScatter(group)
    like: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
    try:
        if kind == "output first":
            scatter.allocate((4,), **like), scatter.allocate((8,), **like)
        elif kind == "input of the last layer":
            old = scatter.allocate((8,), **like)
            scatter.allocate((4,), **like), scatter.allocate((8,), **like)
            scatter(scatter.allocate((4,), **like), old)
        elif kind == "no output":
            scatter(torch.empty(4), scatter.allocate((8,), **like))
        elif kind == "part outside the whole":
            gather(gather.allocate((8,), **like), torch.empty(4))
        elif kind == "whole of the last layer":
            old = gather.allocate((8,), **like)
            gather.allocate((8,), **like)
            gather(old, old.chunk(2)[dist.get_rank()])
    except CollectiveError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("output first", "reduce-scatter: allocated 4, then 8 elements for 2 ranks"),
        ("input of the last layer", "reduce-scatter: not of the memory that was allocated last"),
        ("no output", "reduce-scatter: no output was allocated"),
        ("part outside the whole", "all-gather: a part that was not written in its place"),
        ("whole of the last layer", "all-gather: not into the memory that was allocated last"),
    ],
)
def test_another_order_of_calls_is_refused_on_every_rank(kind: str, words: str, tmp_path: Path) -> None:
    for told in run_ranks(tmp_path, 2, refusals, kind):
        assert words in told and f"torch {torch.__version__}" in told


def test_one_ranks_reduction_of_another_size_is_refused() -> None:
    reduction, like = host_comm.InPlaceReduction(), {"dtype": torch.float32, "device": torch.device("cpu")}
    given = reduction.allocate((8,), **like)
    assert reduction.allocate((8,), **like) is given
    reduction.allocate((8,), **like)
    with pytest.raises(CollectiveError, match="allocated \\(8,\\), then \\(4,\\)"):
        reduction.allocate((4,), **like)


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
