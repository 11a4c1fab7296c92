"""Numbers of a step: how they are reduced, and those that the driver computes itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

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


def data_metrics(tensors: Mapping[str, torch.Tensor], max_response_length: int) -> Metrics:
    """What a finished batch looks like.

    Args:
        tensors: `token_level_scores token_level_rewards advantages returns` `[B, R]` float,
            `response_mask` `[B, R]`, `response_lengths prompt_lengths` `[B]` in tokens; `values` if any.
        max_response_length: a response of this length counts as cut off.
    """
    mask = tensors["response_mask"].bool()
    trained = mask.any(1)
    lengths = tensors["response_lengths"]
    metrics = {
        **spread("critic/score", tensors["token_level_scores"].where(mask, 0).sum(1)[trained]),
        **spread("critic/rewards", tensors["token_level_rewards"].where(mask, 0).sum(1)[trained]),
        **spread("critic/advantages", tensors["advantages"][mask]),
        **spread("critic/returns", tensors["returns"][mask]),
        **spread("response_length", lengths),
        **spread("prompt_length", tensors["prompt_lengths"]),
        "response_length/clip_ratio": (lengths >= max_response_length).double().mean().item(),
    }
    if "values" in tensors:
        metrics |= spread("critic/values", tensors["values"][mask]) | {
            "critic/vf_explained_var": explained_variance(tensors["values"][mask], tensors["returns"][mask])
        }
    return metrics


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """`1 - Var(returns - values) / Var(returns)`; 0 where the returns don't vary."""
    variance = returns.double().var(correction=0).item() if returns.numel() else 0.0
    if variance == 0.0:
        return 0.0
    return 1.0 - (returns.double() - values.double()).var(correction=0).item() / variance
