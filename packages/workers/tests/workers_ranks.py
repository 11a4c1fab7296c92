"""Runs a function on several gloo ranks, each a process, without Ray."""

from __future__ import annotations

import multiprocessing as mp
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_CONTEXT = mp.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "transformers.models.llama.modeling_llama", "workers_programs"])


def _rank_main(
    rank: int, world: int, store: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, out: Any
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        out.put((rank, True, fn(*args, **kwargs)))
    except BaseException:
        out.put((rank, False, traceback.format_exc()))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run_ranks(tmp_path: Any, world: int, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Results of ``fn(*args)`` on each rank; raises with the traceback of the first that failed."""
    store = tmp_path / f"store-{socket.gethostname()}-{id(fn)}-{len(list(tmp_path.iterdir()))}"
    out = _CONTEXT.Queue()
    ranks = [
        _CONTEXT.Process(target=_rank_main, args=(r, world, str(store), fn, args, kwargs, out), daemon=True)
        for r in range(world)
    ]
    for process in ranks:
        process.start()
    results: dict[int, Any] = {}
    try:
        while len(results) < world:
            rank, ok, value = out.get()
            if not ok:
                raise AssertionError(f"rank {rank} of {world} failed:\n{value}")
            results[rank] = value
    finally:
        for process in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
    return [results[rank] for rank in range(world)]
