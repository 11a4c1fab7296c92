"""Scores of the policy on held-out prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rl_algos import compute_maj_at_k, compute_pass_at_k
from rl_rollout import greedy_sampling

from ..data.dataset import PromptDataset, to_prompts
from ..data.sources import Row
from ..view.recorder import Recorder
from .metrics import Metrics, timed
from .rollouts import Rollouts
from .scoring import Scoring
from .step_batch import StepBatch

TOKEN_ROWS = 12  # prompts of a validation whose greedy answer is kept token by token


class Validator:
    """Scores the held-out prompts, greedily and sampled with fixed seeds, and keeps the samples.

    Args:
        dataset: the held-out prompts; None: there are none.
        collate_fn: rows of the dataset to arrays.
        tokenizer: decodes responses.
        rollouts: samples; its `state` gets the headline of each validation.
        scoring: scores, by validation's rule.
        recorder: tells of it; knows the configuration and the run's folder.
    """

    folder = "generations"
    """Where samples are kept, below the run's folder."""

    def __init__(
        self,
        dataset: PromptDataset | None,
        collate_fn: Callable[[Sequence[Row]], dict[str, Any]],
        tokenizer: PreTrainedTokenizerBase,
        rollouts: Rollouts,
        scoring: Scoring,
        recorder: Recorder,
    ) -> None:
        self.dataset, self.collate_fn, self.tokenizer = dataset, collate_fn, tokenizer
        self.rollouts, self.scoring, self.recorder = rollouts, scoring, recorder

    def run(self) -> Metrics:
        """Validate the policy as it is.

        Returns:
            The scores (`validation_metrics`) and what was measured; nothing where there are no prompts.
        """
        if self.dataset is None or not len(self.dataset):
            return {}
        state, metrics = self.rollouts.state, Metrics()
        self.recorder.stage(f"validating after step {state.global_step}")
        with timed(metrics, "testing"):
            rows, measured = self._answers(self.dataset)
        scores = validation_metrics(rows)
        state.validations[state.global_step] = headline(scores)
        write_samples(self.recorder.run / self.folder / f"step_{state.global_step}.jsonl", rows)
        self.recorder.validation(scores, state.global_step)
        return metrics | measured | scores

    def _answers(self, dataset: PromptDataset) -> tuple[list[dict[str, Any]], Metrics]:
        """Each prompt's answers, scored: rows of `sample_rows`, and what the engines measured."""
        config = self.recorder.config
        sampling = config.actor_rollout_ref.rollout.val
        sampled = [] if sampling.greedy else [sampling] * config.trainer.val_n
        samplings = [greedy_sampling(), *sampled]
        held_out = [dataset[i] for i in range(len(dataset))]
        prompts = to_prompts(self.collate_fn(held_out), [f"val-{i}" for i in range(len(held_out))])
        batch, measured = self.rollouts.sample(prompts, samplings, "val")
        scores, _ = self.scoring.of(batch, validation=True)
        rows = sample_rows(batch, scores, self.tokenizer, len(samplings))
        longest = config.data.max_response_length
        return with_tokens(rows, batch, self.tokenizer, len(samplings), longest), measured


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


def with_tokens(
    rows: list[dict[str, Any]],
    batch: StepBatch,
    tokenizer: PreTrainedTokenizerBase,
    answers: int,
    longest: int,
) -> list[dict[str, Any]]:
    """Add whether a response was cut off, and to the first prompts' greedy rows their `tokens`.

    Args:
        rows: of `sample_rows`.
        batch: what they were made of.
        tokenizer: decodes tokens.
        answers: rows of a prompt, the first of them greedy.
        longest: `max_response_length`; a response of this length was cut off.

    Returns:
        The rows with `cut_off`, and `tokens` as lists of text, the engine's log-prob, and whether it is the
        policy's own (False: a tool's).
    """
    lengths = batch["response_lengths"].tolist()
    ids, mask, log_probs = batch["responses"], batch["response_mask"], batch["rollout_log_probs"]
    for row, (made, length) in enumerate(zip(rows, lengths, strict=True)):
        made["cut_off"] = length >= longest
        if row % answers == 0 and row // answers < TOKEN_ROWS:
            texts = [tokenizer.decode([token]) for token in ids[row, :length].tolist()]
            numbers = [round(value, 4) for value in log_probs[row, :length].tolist()]
            own = [bool(value) for value in mask[row, :length].tolist()]
            made["tokens"] = list(zip(texts, numbers, own, strict=True))
    return rows


def write_samples(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep the samples of one validation as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
