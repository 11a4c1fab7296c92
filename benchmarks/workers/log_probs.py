# ruff: noqa: E402  (the environment comes before torch; a benchmark prints)
"""Log-probabilities and entropies, chunked against plain: 4,096 tokens x 576 to 49,152 words and back.

    python benchmarks/workers/log_probs.py [--dtype float32] [--repeat 2]

Each form runs in a process of its own, one thread; the peak is the process's largest resident size beyond
what it held with the inputs.
"""

from __future__ import annotations

import argparse
import os

for _name, _value in {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}.items():
    os.environ.setdefault(_name, _value)

import multiprocessing
import resource
import time
from typing import Any

import torch
import torch.nn.functional as F

from rl_workers import linear_log_probs


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What one writes first."""
    log_p = torch.log_softmax(F.linear(hidden, weight).float(), -1)
    return log_p.gather(1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def run(form: str, dtype: str, repeat: int, out: Any) -> None:
    """Seconds and megabytes of one form."""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(4096, 576, generator=g).to(getattr(torch, dtype)).requires_grad_()
    weight = (torch.randn(49152, 576, generator=g) * 0.05).to(getattr(torch, dtype)).requires_grad_()
    labels = torch.randint(0, 49152, (4096,), generator=g)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    best = float("inf")
    for _ in range(repeat):
        hidden.grad = weight.grad = None
        start, cpu = time.perf_counter(), time.process_time()
        fn = plain if form == "plain" else linear_log_probs
        log_probs, entropy = fn(hidden, weight, labels)
        (log_probs.sum() + 0.0 * entropy.sum()).backward()
        best = min(best, time.process_time() - cpu)
        wall = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    out.put((best, wall, peak, log_probs.detach().double().sum().item(), hidden.grad.double().norm().item()))


def main() -> None:
    """Run both forms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found = {}
    for form in ("plain", "chunked"):
        out = context.Queue()
        process = context.Process(target=run, args=(form, args.dtype, args.repeat, out))
        process.start()
        found[form] = out.get()
        process.join()
        seconds, wall, peak, total, norm = found[form]
        print(f"{form:8s} {seconds:6.2f} CPU s ({wall:.2f} s)  peak {peak:6.0f} MB", end="  ")
        print(f"sum {total:.4f} gradient {norm:.4f}")
    plain_, chunked = found["plain"], found["chunked"]
    print(f"memory 1/{plain_[2] / chunked[2]:.1f}, time {chunked[0] / plain_[0]:.2f}x")


if __name__ == "__main__":
    main()
