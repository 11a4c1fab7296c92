"""Scores of the policy on held-out prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rl_algos import compute_pass_at_k

from .metrics import Metrics


def validation_metrics(sources: Sequence[str], uids: Sequence[str], scores: torch.Tensor) -> Metrics:
    """Mean score and pass@k per data source.

    Args:
        sources: `data_source` of each row.
        uids: prompt of each row.
        scores: `[B]` float; NaN (a row without a value) counts as 0, as a failed answer.

    Returns:
        `val-core/<source>/reward/mean@n` and, where a score above 0 means success (all scores in [0, 1]),
        `val-core/<source>/reward/pass@n` for the n samples of each prompt.
    """
    metrics: Metrics = {}
    values = torch.nan_to_num(scores.double(), nan=0.0)
    for source in dict.fromkeys(sources):
        rows = [i for i, name in enumerate(sources) if name == source]
        prompts: dict[str, list[int]] = {}
        for row in rows:
            prompts.setdefault(uids[row], []).append(row)
        n = max(len(group) for group in prompts.values())
        metrics[f"val-core/{source}/reward/mean@{n}"] = values[rows].mean().item()
        if n > 1 and values.min() >= 0 and values.max() <= 1:
            found = [compute_pass_at_k(len(g), int((values[g] == 1).sum()), len(g)) for g in prompts.values()]
            metrics[f"val-core/{source}/reward/pass@{n}"] = float(np.mean([float(x) for x in found]))
    return metrics


def headline(metrics: Metrics) -> float:
    """One number for a validation: the mean over data sources of their mean score."""
    means = [value for key, value in metrics.items() if "/reward/mean@" in key]
    return sum(means) / len(means) if means else float("nan")


def write_samples(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Keep prompts, responses and scores of one validation as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
