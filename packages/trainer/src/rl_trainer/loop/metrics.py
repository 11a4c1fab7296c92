"""Numbers of a step: how they are reduced, and those that the driver computes itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from .step_batch import StepBatch

Metrics = dict[str, float]
REDUCTIONS: dict[str, Callable[[np.ndarray], np.floating[Any]]] = {
    "max": np.max,
    "min": np.min,
    "sum": np.sum,
}


def reduce_metrics(metrics: Mapping[str, Sequence[float] | float]) -> Metrics:
    """One number per key; its last path segment declares how.

    `.../max`, `.../min` and `.../sum` do what they say, anything else is a mean. A key without entries
    is left out.
    """
    reduced = {}
    for key, entries in metrics.items():
        values = np.atleast_1d(np.asarray(entries, dtype=np.float64))
        if values.size:
            reduced[key] = float(REDUCTIONS.get(key.rpartition("/")[2], np.mean)(values))
    return reduced


def add_counts(metrics: Metrics, more: Mapping[str, float]) -> None:
    """Take up numbers of another batch of the same step: counts (`.../sum`) add up, the rest is new."""
    for key, value in more.items():
        metrics[key] = value + (metrics.get(key, 0.0) if key.endswith("/sum") else 0.0)


@contextmanager
def timed(metrics: Metrics, name: str) -> Iterator[None]:
    """Add the block's seconds to `timing_s/<name>`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        key = f"timing_s/{name}"
        metrics[key] = metrics.get(key, 0.0) + time.perf_counter() - start


def spread(name: str, values: torch.Tensor) -> Metrics:
    """Mean, maximum and minimum of a flat tensor; nothing where it is empty."""
    if not values.numel():
        return {}
    values = values.double()
    return {
        f"{name}/mean": values.mean().item(),
        f"{name}/max": values.max().item(),
        f"{name}/min": values.min().item(),
    }


def data_metrics(batch: StepBatch, max_response_length: int) -> Metrics:
    """What a finished batch looks like: `scores advantages returns`, lengths in tokens, `values` if any.

    Args:
        batch: after the update.
        max_response_length: a response of this length counts as cut off.
    """
    actions, lengths = batch.num_actions, batch["response_lengths"]
    rewards = batch.made.get("token_level_rewards")
    if rewards is not None:
        rewards = rewards.where(batch["response_mask"].bool(), 0).sum(1)
    returns = over_actions(batch, batch["returns"])
    metrics = {
        **spread("critic/score", batch["scores"][actions > 0]),
        **spread("critic/rewards", (batch["scores"] if rewards is None else rewards)[actions > 0]),
        **spread("critic/advantages", over_actions(batch, batch["advantages"])),
        **spread("critic/returns", returns),
        **spread("response_length", lengths),
        **spread("prompt_length", batch["prompt_lengths"]),
        "response_length/clip_ratio": (lengths >= max_response_length).double().mean().item(),
    }
    if "values" in batch.seen:
        values = over_actions(batch, batch["values"])
        metrics |= spread("critic/values", values)
        metrics["critic/vf_explained_var"] = explained_variance(values, returns)
    return metrics


def throughput(batch: StepBatch, seconds: float) -> Metrics:
    """Tokens of a step, prompts included, and how many in a second."""
    tokens = float((batch["prompt_lengths"] + batch["response_lengths"]).sum().item())
    return {"perf/total_num_tokens": tokens, "perf/throughput": tokens / seconds}


def over_actions(batch: StepBatch, column: torch.Tensor) -> torch.Tensor:
    """A column `[B]` or `[B, R]` as one value per token that is trained on, flat."""
    if column.dim() == 1:
        return column.repeat_interleave(batch.num_actions)
    return column[batch["response_mask"].bool()]


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """`1 - Var(returns - values) / Var(returns)`; 0 where the returns don't vary."""
    variance = returns.double().var(correction=0).item() if returns.numel() else 0.0
    if variance == 0.0:
        return 0.0
    return 1.0 - (returns.double() - values.double()).var(correction=0).item() / variance
