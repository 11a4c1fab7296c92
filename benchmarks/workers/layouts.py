# ruff: noqa: E402  (the environment comes before torch; a benchmark prints)
"""Padded against packed, packed against shared prompts: forward and backward to log-probabilities.

    python benchmarks/workers/layouts.py MODEL [--dtype bfloat16] [--repeat 3]

One process, one thread, one model. Part one: 16 rows whose mean length is a quarter of the maximum (256).
Part two: 4 prompts of 45 tokens with 8 responses of 11. Prints the fastest of the repeats of each, in
CPU seconds, and the ratios; in float32 also the largest difference of log-probabilities and gradients.
"""

from __future__ import annotations

import argparse
import os

for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GLOO_SOCKET_IFNAME": "lo",
}.items():
    os.environ.setdefault(_name, _value)

import tempfile
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from rl_workers import (
    FSDPConfig,
    FSDPEngine,
    ModelConfig,
    OptimConfig,
    PackedBatch,
    PolicyModel,
    build_on_meta,
    nothing_new,
    pack_rows,
    pad_rows,
    tabulate_rows,
)
from rl_workers.compute.packing import RowTable
from rl_workers.fsdp.mesh import build_layout


def rows_of(prompts: torch.Tensor, responses: torch.Tensor, lengths: torch.Tensor) -> RowTable:
    """A table of rows, right-padded."""
    mask = (torch.arange(responses.shape[1])[None] < lengths[:, None]).long()
    real = torch.cat([torch.ones_like(prompts), mask], 1)
    return tabulate_rows(torch.cat([prompts, responses * mask], 1), real, mask)


def build(path: str, dtype: str, packed: bool) -> FSDPEngine:
    """An engine of one rank."""
    model = ModelConfig(path, use_remove_padding=packed)
    lm = build_on_meta(AutoModelForCausalLM, model, torch.float32)
    fsdp = FSDPConfig(compute_dtype=dtype)
    layout = build_layout(torch.device("cpu"))
    return FSDPEngine(
        PolicyModel(lm), path, layout, fsdp, new=nothing_new, optim=OptimConfig(name="sgd", lr=0.0)
    )


def measure(engine: FSDPEngine, batch: PackedBatch, repeat: int) -> tuple[float, torch.Tensor, torch.Tensor]:
    """CPU seconds, log-probabilities and one gradient."""
    best, out, grad = float("inf"), torch.zeros(0), torch.zeros(0)
    for _ in range(repeat):
        engine.module.zero_grad()
        start = time.process_time()
        log_probs, _ = engine.module(batch, entropy=False)
        (log_probs * (batch.columns % 3 - 1.0)).sum().backward()
        best = min(best, time.process_time() - start)
        out = torch.zeros(64, 512)
        batch.scatter(log_probs.detach(), out)
        name = "lm.model.layers.3.self_attn.q_proj.weight"
        grad = dict(engine.module.named_parameters())[name].grad.full_tensor().clone()
    return best, out, grad


def compare(
    title: str,
    args: argparse.Namespace,
    table: RowTable,
    forms: Sequence[tuple[str, bool, Callable[..., PackedBatch]]],
) -> None:
    """Measure two layouts of the same rows."""
    rows = list(range(len(table)))
    found = []
    for name, packed, make in forms:
        seconds, out, grad = measure(build(args.model, args.dtype, packed), make(table, rows), args.repeat)
        print(f"{title:28s} {name:8s} {seconds:6.2f} s")
        found.append((seconds, out, grad))
    (slow, out_a, grad_a), (fast, out_b, grad_b) = found
    print(f"{title:28s} ratio    {slow / fast:6.2f}", end="")
    error = (grad_a - grad_b).norm() / grad_a.norm()
    print(f"   log-probs differ by {(out_a - out_b).abs().max():.1e}, gradient by {error:.1e}")


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
        lengths = torch.tensor([248, *torch.randint(16, 72, (15,), generator=g).tolist()])
        ragged = rows_of(
            torch.randint(5, 40000, (16, 8), generator=g),
            torch.randint(5, 40000, (16, 248), generator=g),
            lengths,
        )
        print(f"mean length {(lengths + 8).float().mean():.0f} of 256")
        compare(
            "a quarter of the maximum",
            args,
            ragged,
            [("padded", False, pad_rows), ("packed", True, pack_rows)],
        )
        prompts = torch.randint(5, 40000, (4, 45), generator=g).repeat_interleave(8, 0)
        shared = rows_of(prompts, torch.randint(5, 40000, (32, 11), generator=g), torch.full((32,), 11))

        def apart(table: RowTable, rows: Sequence[int]) -> PackedBatch:
            return pack_rows(table, rows, share_prompts=False)

        compare("45 + 8 x 11 tokens", args, shared, [("packed", True, apart), ("shared", True, pack_rows)])
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
