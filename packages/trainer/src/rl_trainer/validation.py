"""Scores of the policy on held-out prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rl_algos import compute_maj_at_k, compute_pass_at_k

from .metrics import Metrics
from .step_batch import StepBatch


def validation_metrics(rows: Sequence[Mapping[str, Any]]) -> Metrics:
    """Scores of the greedy answers, and mean, pass@k and maj@k of the sampled ones, per data source.

    Args:
        rows: of `sample_rows`. A score that is not a number (a row without a value) counts as 0.

    Returns:
        `val-core/<source>/reward/greedy`; where answers were sampled, n for each prompt, `.../mean@n`; and
        where all their scores lie in [0, 1], so that 1 means success, `.../pass@n` and `.../maj@n` (the most
        frequent answer is right; ties count by their share).
    """
    metrics: Metrics = {}
    for source in dict.fromkeys(row["source"] for row in rows):
        name = f"val-core/{source}/reward"
        mine = [row for row in rows if row["source"] == source]
        metrics[f"{name}/greedy"] = _values([row for row in mine if row["greedy"]]).mean().item()
        sampled = [row for row in mine if not row["greedy"]]
        if sampled:
            n = len(sampled) // len({row["uid"] for row in sampled})
            metrics |= {f"{name}/{key}@{n}": value for key, value in _of_sampled(sampled, n).items()}
    return metrics


def _values(rows: Sequence[Mapping[str, Any]]) -> torch.Tensor:
    scores = torch.tensor([row["score"] for row in rows], dtype=torch.float64)
    return torch.nan_to_num(scores, nan=0.0)


def _of_sampled(rows: Sequence[Mapping[str, Any]], n: int) -> Metrics:
    values = _values(rows)
    metrics = {"mean": values.mean().item()}
    if n > 1 and values.min() >= 0 and values.max() <= 1:
        uids, right = [row["uid"] for row in rows], values == 1
        places = {uid: place for place, uid in enumerate(dict.fromkeys(uids))}
        of_prompt = torch.tensor([places[uid] for uid in uids])
        correct = torch.zeros(len(places), dtype=torch.int64).index_add_(0, of_prompt, right.long())
        answers = [row["response"].strip() for row in rows]
        metrics["pass"] = compute_pass_at_k(torch.full_like(correct, n), correct, n).mean().item()
        metrics["maj"] = compute_maj_at_k(answers, right, uids).mean().item()
    return metrics


def headline(metrics: Metrics) -> float:
    """One number for a validation: the mean over data sources of their sampled, else greedy, mean score."""
    sampled = [value for key, value in metrics.items() if "/reward/mean@" in key]
    found = sampled or [value for key, value in metrics.items() if key.endswith("/reward/greedy")]
    return sum(found) / len(found) if found else float("nan")


def sample_rows(
    batch: StepBatch, scores: torch.Tensor, tokenizer: PreTrainedTokenizerBase, answers: int
) -> list[dict[str, Any]]:
    """Each row as text and numbers; of a prompt's `answers`, the first is the greedy one."""
    objects = batch.local.non_tensor_batch
    columns = {"source": objects["data_source"], "uid": objects["uid"], "prompt": objects["raw_prompt"]}
    responses, lengths = batch["responses"].tolist(), batch["response_lengths"].tolist()
    rows = []
    for row, (ids, length, score) in enumerate(zip(responses, lengths, scores.tolist(), strict=True)):
        text = tokenizer.decode(ids[:length], skip_special_tokens=True)
        made = {"greedy": row % answers == 0, "response": text, "score": score}
        rows.append({name: column[row] for name, column in columns.items()} | made)
    return rows


def write_samples(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Keep the samples of one validation as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
