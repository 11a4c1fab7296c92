"""Scores of the policy on held-out prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rl_algos import compute_maj_at_k, compute_pass_at_k

from .metrics import Metrics
from .step_batch import StepBatch


def validation_metrics(
    sources: Sequence[str], uids: Sequence[str], scores: torch.Tensor, answers: Sequence[str]
) -> Metrics:
    """Mean score, pass@k and maj@k per data source.

    Args:
        sources: `data_source` of each row.
        uids: prompt of each row.
        scores: `[B]` float; NaN (a row without a value) counts as 0, a failed answer.
        answers: response of each row; equal ones vote together.

    Returns:
        `val-core/<source>/reward/mean@n` and, where every score lies in [0, 1] so that 1 means success,
        `val-core/<source>/reward/pass@n` and `.../maj@n` (the most frequent answer is right; ties count by
        their share); n is the number of answers per prompt.
    """
    metrics: Metrics = {}
    values = torch.nan_to_num(scores.double(), nan=0.0)
    for source in dict.fromkeys(sources):
        prompts: dict[str, list[int]] = {}
        for row, name in enumerate(sources):
            if name == source:
                prompts.setdefault(uids[row], []).append(row)
        n = max(len(rows) for rows in prompts.values())
        mine = values[[row for rows in prompts.values() for row in rows]]
        metrics[f"val-core/{source}/reward/mean@{n}"] = mine.mean().item()
        if n > 1 and mine.min() >= 0 and mine.max() <= 1:
            right = torch.tensor([(values[rows] == 1).sum().item() for rows in prompts.values()])
            found = compute_pass_at_k(torch.full_like(right, n), right, n)
            metrics[f"val-core/{source}/reward/pass@{n}"] = found.mean().item()
            rows = [row for group in prompts.values() for row in group]
            voted = compute_maj_at_k([answers[i] for i in rows], mine == 1, [uids[i] for i in rows])
            metrics[f"val-core/{source}/reward/maj@{n}"] = voted.mean().item()
    return metrics


def headline(metrics: Metrics) -> float:
    """One number for a validation: the mean over data sources of their mean score."""
    means = [value for key, value in metrics.items() if "/reward/mean@" in key]
    return sum(means) / len(means) if means else float("nan")


def sample_rows(
    batch: StepBatch, scores: torch.Tensor, tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    """Prompt, response and score of each row, as text and numbers."""
    rows = []
    prompts = batch.local.non_tensor_batch["raw_prompt"]
    responses, lengths = batch["responses"].tolist(), batch["response_lengths"].tolist()
    for prompt, ids, length, score in zip(prompts, responses, lengths, scores.tolist(), strict=True):
        text = tokenizer.decode(ids[:length], skip_special_tokens=True)
        rows.append({"prompt": prompt, "response": text, "score": score})
    return rows


def write_samples(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Keep the samples of one validation as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
