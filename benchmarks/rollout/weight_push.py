"""What a weight push costs, two FSDP2 ranks, an engine each: weight_push.py MODEL [--dtype float32]."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from rl_rollout import engine_env

os.environ.update(engine_env("cpu", offline=True))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

from rl_rollout import FSDPVLLMShardingManager, RolloutConfig, build_rollout, stream_weights

RANKS = 2


def memory(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024


def measure(action: Callable[[], object], repeats: int) -> tuple[float, int]:
    """Least seconds of a call, and the most memory it needed beyond what was there before."""
    seconds, extra = [], []
    for _ in range(repeats):
        dist.barrier()
        with open("/proc/self/clear_refs", "w") as reset:
            reset.write("5")
        before, started = memory("VmRSS"), time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
        extra.append(memory("VmHWM") - before)
    return min(seconds), min(extra)


def run_rank(path: str, dtype: torch.dtype, bucket_bytes: int, repeats: int) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    config = RolloutConfig(
        name="vllm", dtype=str(dtype).removeprefix("torch."), prompt_length=64, response_length=64,
        max_num_seqs=64, kv_cache_memory_bytes=64 << 20,
    )  # fmt: skip
    rollout = build_rollout(config, path)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    manager = FSDPVLLMShardingManager(model, rollout, bucket_bytes=bucket_bytes)
    numel = sum(p.numel() for p in model.parameters())

    def plain_gather() -> None:
        local = torch.zeros(numel // RANKS, dtype=dtype)
        dist.all_gather_into_tensor(local.new_empty(numel // RANKS * RANKS), local)

    def gather() -> None:
        for _ in stream_weights(model, dtype, bucket_bytes):
            pass

    source, target = torch.ones(numel, dtype=dtype), torch.ones(numel, dtype=dtype)
    manager.push_weights()  # first use allocates what later ones reuse
    copied = measure(lambda: target.copy_(source), repeats)
    plain = measure(plain_gather, repeats)
    gathered = measure(gather, repeats)
    pushed = measure(manager.push_weights, repeats)
    full = list(stream_weights(model, dtype, bucket_bytes))
    reloaded = measure(lambda: rollout.update_weights(iter(full)), repeats)
    if dist.get_rank() == 0:
        rows = {
            "one memcpy": copied,
            "plain gloo all-gather": plain,
            "gathering alone": gathered,
            "reloading alone": reloaded,
            "the whole push": pushed,
        }
        report(model, dtype, bucket_bytes, rows)
    dist.barrier()
    os._exit(0)


def report(model: Any, dtype: torch.dtype, bucket_bytes: int, rows: dict[str, tuple[float, int]]) -> None:
    """Seconds and memory beyond the model's; what a push is beside one copy of the model in memory."""
    numel = sum(p.numel() for p in model.parameters())
    largest = max(p.numel() for p in model.parameters()) * dtype.itemsize
    for name, (seconds, extra) in rows.items():
        print(f"{name:22} {seconds:6.3f} s   +{extra / 2**20:6.1f} MiB")
    print(f"{numel * dtype.itemsize / 2**20:.0f} MiB {dtype}, largest tensor {largest / 2**20:.1f} MiB, "
          f"bucket {bucket_bytes / 2**20:.1f} MiB")  # fmt: skip
    pushed = rows["the whole push"][0]
    apart = rows["plain gloo all-gather"][0] + rows["reloading alone"][0]
    print(f"whole / (plain + reload) = {pushed / apart:.2f}")
    print(f"whole / one memcpy       = {pushed / rows['one memcpy'][0]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--bucket-mib", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(
            arguments.model, getattr(torch, arguments.dtype), arguments.bucket_mib << 20, arguments.repeats
        )
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, **shared, "RANK": str(r), "LOCAL_RANK": str(r)}
        )
        for r in range(RANKS)
    ]
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
