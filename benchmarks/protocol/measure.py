"""Measures one side, this library's `DataProto` or the reference's, and prints JSON.

    python measure.py ours|reference

Times are seconds, the best of several; sizes are bytes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
import torch

MB = 1 << 20
ROWS = 4096


def best(function: Callable[[], object], repeats: int) -> float:
    """Shortest time of several calls: other work on the machine only ever adds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        kept = function()
        times.append(time.perf_counter() - begin)
        del kept
    return min(times)


def batch_of(data_proto: Any, megabytes: int) -> Any:
    """Eight float32 columns of equal size, 4,096 rows, and ids."""
    width = megabytes * MB // 8 // 4 // ROWS
    tensors = {f"c{number}": torch.full((ROWS, width), float(number)) for number in range(8)}
    import numpy as np

    return data_proto.from_dict(tensors, {"uid": np.array([f"u{i}" for i in range(ROWS)], dtype=object)})


def views(data_proto: Any) -> dict[str, float]:
    """Operations that need not read an element, on 256 MB; and concat, which must copy every byte."""
    batch = batch_of(data_proto, 256)
    other = data_proto.from_dict({"new": torch.zeros(ROWS, 8)})
    parts = batch.chunk(8)
    columns = [[part.batch[f"c{n}"] for part in parts] for n in range(8)]
    return {
        "chunk": best(lambda: batch.chunk(8), 20),
        "select": best(lambda: batch.select(["c0", "c1"]), 20),
        "slice": best(lambda: batch.slice(100, 900), 20),
        "union": best(lambda: batch.select(["c0"]).union(other), 20),
        "concat": best(lambda: data_proto.concat(parts), 5),
        "bare_cat": best(lambda: [torch.cat(column) for column in columns], 5),
    }


def resident() -> int:
    """Private resident bytes of this process: mapped shared memory is not counted."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) * 1024


def read(refs: list[Any]) -> dict[str, float]:
    """In another process: get a batch, touch every page, and tell time and growth of memory."""
    before = resident()
    begin = time.perf_counter()
    batch = ray.get(refs[0])
    seconds = time.perf_counter() - begin
    total = sum(float(column.sum()) for column in batch.batch.values())
    return {"get": seconds, "growth": resident() - before, "sum": total}


def store(data_proto: Any) -> dict[str, float]:
    """Put and get of 512 MB through Ray's object store."""
    batch = batch_of(data_proto, 512)
    puts, gets = [], []
    for _ in range(3):
        begin = time.perf_counter()
        ref = ray.put(batch)
        puts.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        got = ray.get(ref)
        gets.append(time.perf_counter() - begin)
        del got
        there = ray.get(ray.remote(num_cpus=1)(read).remote([ref]))
        del ref
    return {
        "put": min(puts),
        "get": min(gets),
        "growth": there["growth"] / (512 * MB),
        "read_sum": there["sum"],
    }


def import_seconds(module: str, after: list[str]) -> float:
    """Time that an import adds to those before it."""
    for name in after:
        importlib.import_module(name)
    begin = time.perf_counter()
    importlib.import_module(module)
    return time.perf_counter() - begin


def main(side: str) -> None:
    """Measure everything for one side."""
    results: dict[str, float] = {}
    if side == "ours":
        results["import"] = import_seconds("rl_protocol", ["torch", "tensordict"])
    data_proto = importlib.import_module("rl_protocol" if side == "ours" else "verl.protocol").DataProto
    results |= views(data_proto)
    ray.init("local", num_cpus=2, object_store_memory=1400 * MB, include_dashboard=False, log_to_driver=False)
    results |= store(data_proto)
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
