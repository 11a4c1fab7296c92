"""Measures one side, this library's worker groups or the reference's, and prints JSON.

    python measure.py ours|reference

Times are seconds, the best of several; sizes are bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ["BENCH_SIDE"] = sys.argv[1]
os.environ["PYTHONPATH"] = str(Path(__file__).parent)

import ray
import torch
from lab import MB, ROWS, batch_of, lib, start


def best(function: Callable[[], object], repeats: int) -> float:
    """Shortest time of several calls: other work on the machine only ever adds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        kept = function()
        times.append(time.perf_counter() - begin)
        del kept
    return min(times)


def median(function: Callable[[], object], repeats: int) -> float:
    """Median time of a short call."""
    times = sorted(best(function, 1) for _ in range(repeats))
    return times[len(times) // 2]


def chain(group: Any) -> float:
    """Make 256 MB on the workers, four steps over it, one summary: six calls."""
    seeds = lib.DataProto.from_dict({"seed": torch.arange(ROWS)})
    batch = group.make(seeds)
    for _ in range(4):
        batch = group.step(batch)
    return float(group.summary(batch).batch["mean"].mean())


def round_trips(group: Any, n_workers: int) -> dict[str, float]:
    """A call that does nothing, and the bare Ray calls that it makes, in turns."""
    bare = lambda: ray.get([worker.noop.remote() for worker in group.workers])  # noqa: E731
    group.noop(), bare()
    ours, theirs = [], []
    for _ in range(10):
        ours.append(median(group.noop, 40))
        theirs.append(median(bare, 40))
    return {f"noop_{n_workers}": min(ours), f"bare_{n_workers}": min(theirs)}


def there_and_back(group: Any, megabytes: int, repeats: int) -> dict[str, float]:
    """Dispatch of a batch, a method that reads or writes, and collection of the result."""
    batch = batch_of(megabytes)
    return {
        f"echo_{megabytes}": best(lambda: group.echo(batch), repeats),
        f"write_{megabytes}": best(lambda: group.write(batch), repeats),
    }


def planning() -> dict[str, float]:
    """Cutting a batch, and a future, for many workers that do not exist."""
    from rl_controller import Dispatch
    from rl_protocol import DataProtoFuture, LocalRef

    class Many:
        world_size, name = 0, "many"

    batch = batch_of(8)
    future = DataProtoFuture([LocalRef(part) for part in batch.chunk(64)]).rename("c0", "d0")
    dispatch = Dispatch.DP_COMPUTE_PROTO.dispatch_fn
    found = {}
    for workers in (256, 512, 1024):
        Many.world_size = workers
        found[f"plan_{workers}"] = best(lambda: dispatch(Many, batch, k=1), 60)
        found[f"plan_future_{workers}"] = best(lambda: dispatch(Many, future, k=1), 30)
    return found


def main(side: str) -> None:
    """Measure everything for one side."""
    results: dict[str, float] = planning() if side == "ours" else {}
    ray.init(
        "local", num_cpus=12, object_store_memory=2800 * MB, include_dashboard=False, log_to_driver=False
    )
    group = start(2)
    results |= round_trips(group, 2)
    results |= there_and_back(group, 64, 15) | there_and_back(group, 512, 4)
    results["chain"] = best(lambda: chain(group), 3)
    if side == "ours":
        from rl_protocol import transfer_count

        before = transfer_count()
        chain(group)
        results["chain_driver_bytes"] = (transfer_count() - before).total
        group.shutdown()
        group = start(8)
        results |= round_trips(group, 8)
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
