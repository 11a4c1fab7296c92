# ruff: noqa: E402  (the environment comes before torch; a benchmark prints)
"""One training step of the quick start, timed and profiled: where does its time go?

    python benchmarks/workers/quickstart_step.py MODEL [--ranks 2] [--steps 3] [--profile] [--form shared]

Each rank has one thread, 8 prompts of 45 tokens with 8 responses of 4 to 16 tokens, float32 weights and bf16
compute. Prints seconds per step (slowest rank), and with --profile the share of the step's own time that is
spent in matrix products and attention, in other computation, in communication and in the optimizer.
"""

from __future__ import annotations

import argparse
import gc
import os

for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GLOO_SOCKET_IFNAME": "lo",
}.items():
    os.environ.setdefault(_name, _value)

import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

from rl_protocol import DataProto
from rl_workers import (
    ActorConfig,
    FSDPConfig,
    FSDPEngine,
    ModelConfig,
    OptimConfig,
    PolicyModel,
    build_on_meta,
    cut_micro_batches,
    nothing_new,
)
from rl_workers.compute.policy_step import PolicyStep
from rl_workers.fsdp.host_memory import keep_freed_memory
from rl_workers.fsdp.mesh import build_layout

PROFILES = 8  # at most: a profile's records may take the places of the step's blocks in the heap
GROUPS = {
    "products and attention": (
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "aten::linear",
        "aten::mkldnn_linear",
        "aten::_mkldnn_linear",
    ),
    "communication": ("gloo:", "c10d::", "fsdp::", "FSDP::", "record_param_comms"),
    "optimizer": ("aten::_fused_adamw_", "Optimizer.step", "Optimizer.zero_grad"),
}


def make_rows(vocab: int, seed: int) -> dict[str, torch.Tensor]:
    """8 prompts of 45 tokens with 8 ragged responses each, right-padded to 16.

    The lengths are the same for every seed: a trainer balances the ranks' work.
    """
    g = torch.Generator().manual_seed(seed)
    prompts = torch.randint(5, vocab, (8, 45), generator=g).repeat_interleave(8, 0)
    lengths = torch.randint(4, 17, (64,), generator=torch.Generator().manual_seed(0))
    lengths = (lengths * (11 / lengths.float().mean())).round().long().clamp(2, 16)
    mask = (torch.arange(16)[None] < lengths[:, None]).long()
    ids = torch.cat([prompts, torch.randint(5, vocab, (64, 16), generator=g) * mask], 1)
    return {
        "input_ids": ids,
        "attention_mask": torch.cat([torch.ones_like(prompts), mask], 1),
        "response_mask": mask,
        "advantages": torch.randn(64, generator=g)[:, None] * mask,
        "row_weights": torch.full((64,), 1.0 / (2 * int(mask.sum()))),
    }


def run_rank(rank: int, args: argparse.Namespace, store: str) -> None:
    """Build the engine, warm up, time the steps, profile one."""
    torch.set_num_threads(1)
    keep_freed_memory()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    model = ModelConfig(
        path=args.model, use_remove_padding=args.form != "padded", share_prompts=args.form == "shared"
    )
    layout = build_layout(torch.device("cpu"), args.fsdp_size)
    fsdp = FSDPConfig(compute_dtype=args.dtype, fsdp_size=args.fsdp_size)
    start = time.perf_counter()
    lm = build_on_meta(AutoModelForCausalLM, model, torch.float32)
    engine = FSDPEngine(
        PolicyModel(lm), model.path, layout, fsdp, new=nothing_new, optim=OptimConfig(lr=1e-5), grad_clip=1.0
    )
    if rank == 0:
        print(f"built in {time.perf_counter() - start:.2f} s")
    config = ActorConfig()

    def step() -> float:
        start = time.perf_counter()
        rows = make_rows(lm.config.vocab_size, rank)
        data = DataProto.from_dict(tensors=rows)
        batches = cut_micro_batches(data, model, config.ppo_max_token_len_per_gpu, "budget", layout)
        policy = PolicyStep(config, rows)
        engine.train_step(batches, lambda batch: policy.loss(batch, *engine.module(batch)))
        return time.perf_counter() - start

    step()
    cpu = time.process_time()
    times = [step() for _ in range(args.steps)]
    cpu = (time.process_time() - cpu) / args.steps
    slowest = torch.tensor(times)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(
            "seconds per step:",
            " ".join(f"{t:.2f}" for t in slowest.tolist()),
            f"(CPU time of rank 0: {cpu:.2f})",
        )
    if args.profile:
        gc.freeze()  # a profile's records would make Python search all that was imported, which no step does
        for _ in range(PROFILES):
            with profile(activities=[ProfilerActivity.CPU]) as found:
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                step()
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
            faults = layout.max_over_ranks(faults)
            if faults < 1000:
                break
        if rank == 0:
            print(f"page faults in the profiled step: {faults}")
            report(found)
    dist.destroy_process_group()


def report(found: Any) -> None:
    """Self time by kind, then the twenty dearest operations."""
    events = found.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    left = total
    for kind, names in GROUPS.items():
        share = sum(e.self_cpu_time_total for e in events if any(e.key.startswith(n) for n in names))
        left -= share
        print(f"{kind:24s} {share / 1e6:7.2f} s {100 * share / total:5.1f}%")
    print(f"{'other':24s} {left / 1e6:7.2f} s {100 * left / total:5.1f}%")
    print(events.table(sort_by="self_cpu_time_total", row_limit=24, max_name_column_width=60))


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--form", default="shared", choices=["shared", "packed", "padded"])
    parser.add_argument("--fsdp-size", type=int, default=-1)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (args, str(Path(folder) / "store")), nprocs=args.ranks)


if __name__ == "__main__":
    main()
