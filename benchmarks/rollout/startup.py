"""How long an engine takes to its first token: python startup.py MODEL [--dtype float32]."""

from __future__ import annotations

import argparse
import os
import time

from rl_rollout import engine_env

os.environ.update(engine_env("cpu", offline=True))

from rl_rollout import RolloutConfig, SamplingConfig, build_rollout


def first_token(model: str, dtype: str) -> float:
    """Seconds from nothing to one generated token."""
    started = time.perf_counter()
    config = RolloutConfig(
        name="vllm", dtype=dtype, load_format="auto", prompt_length=64, response_length=64, max_num_seqs=32,
        kv_cache_memory_bytes=64 << 20,
    )  # fmt: skip
    rollout = build_rollout(config, model)
    rollout.complete([[5, 6, 7]], [SamplingConfig(max_tokens=1)], [0])
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    started = time.perf_counter()
    import vllm  # noqa: F401

    print(f"import vllm           {time.perf_counter() - started:6.2f} s")
    for name in ("first engine + token ", "second engine + token"):
        print(f"{name} {first_token(arguments.model, arguments.dtype):6.2f} s")


if __name__ == "__main__":
    main()
