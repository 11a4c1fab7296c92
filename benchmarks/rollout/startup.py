"""How long an engine takes to its first token: python startup.py MODEL [--dtype float32]."""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable

from rl_rollout import engine_env

os.environ.update(engine_env("cpu", offline=True))

from rl_rollout import RolloutConfig, SamplingConfig, build_rollout


def clocks() -> tuple[float, float]:
    """Wall and CPU seconds; the second doesn't see the neighbours' work."""
    return time.perf_counter(), time.process_time()


def first_token(model: str, dtype: str) -> None:
    """From nothing to one generated token."""
    config = RolloutConfig(
        name="vllm", dtype=dtype, load_format="auto", prompt_length=64, response_length=64, max_num_seqs=32,
        kv_cache_memory_bytes=64 << 20,
    )  # fmt: skip
    rollout = build_rollout(config, model)
    rollout.complete([[5, 6, 7]], [SamplingConfig(max_tokens=1)], [0])


def timed(name: str, action: Callable[[], object]) -> None:
    wall, cpu = clocks()
    action()
    now_wall, now_cpu = clocks()
    print(f"{name:22} {now_wall - wall:6.2f} s wall {now_cpu - cpu:6.2f} s CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    timed("import vllm.LLM", lambda: importlib.import_module("vllm").LLM)
    for name in ("first engine + token", "second engine + token"):
        timed(name, lambda: first_token(arguments.model, arguments.dtype))


if __name__ == "__main__":
    main()
