"""Rule rewards: a user's Python function, run in processes of its own with a limit per row."""

from __future__ import annotations

import logging
import math
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from pebble import ProcessPool
from tensordict import TensorDict
from transformers import PreTrainedTokenizerBase

from rl_protocol import DataProto

from ..data.rows import OWN
from ..errors import RewardError
from .process import Outcome, accepts, call_reward, load_reward_function, prepare, takes_lists, waits

logger = logging.getLogger(__name__)

ROWS_PER_CALL = 32  # most rows that a function of lists gets at once


@dataclass(frozen=True)
class RewardResult:
    """What a batch earned.

    Attributes:
        scores: `[B]` float32; NaN where the row has no value.
        extras: further numbers that the function returned, by name, `[B]` float64, NaN where missing.
        failures: what went wrong, by kind (`raised`, `timed_out`, `no_value`), as counts.
        first_failure: what the first call that went wrong did; "" if none did.
    """

    scores: torch.Tensor
    extras: dict[str, np.ndarray]
    failures: dict[str, int]
    first_failure: str = ""

    def components(self, keys: Sequence[str]) -> torch.Tensor:
        """Numbers of the function's dict as components of the reward, `[B, K]` float32; what is missing or
        not finite is 0.

        Raises:
            RewardError: no row has the number.
        """
        columns = {"score": self.scores.numpy(), **self.extras}
        missing = [key for key in keys if key not in columns]
        if missing:
            raise RewardError(
                f"algorithm.gdpo_reward_keys names {missing}; the reward function gave {list(columns)}"
            )
        found = torch.stack([torch.from_numpy(columns[key]).float() for key in keys], dim=1)
        return torch.nan_to_num(found, posinf=0.0, neginf=0.0)

    def metrics(self) -> dict[str, float]:
        """Mean of each further number, and failures by kind."""
        means = {f"reward/{name}": float(np.nanmean(values)) for name, values in self.extras.items()}
        return means | {f"reward/{kind}/sum": float(count) for kind, count in self.failures.items()}

    def to_batch(self) -> DataProto:
        """The form in which it travels; the parts of several workers stack."""
        rows = range(len(self.scores))
        extras = [{name: float(column[row]) for name, column in self.extras.items()} for row in rows]
        counts = {**self.failures, "first_failure": self.first_failure}
        return DataProto.from_dict({"scores": self.scores}, {"extras": extras}, {"metrics": counts})

    @classmethod
    def from_batch(cls, batch: DataProto) -> RewardResult:
        """What `to_batch` made, of all workers."""
        rows = batch.non_tensor_batch["extras"]
        names = dict.fromkeys(name for row in rows for name in row)
        extras = {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
        counts = dict(batch.meta_info["metrics"])
        first = next(filter(None, counts.pop("first_failure")), "")
        failures = {kind: sum(of_ranks) for kind, of_ranks in counts.items()}
        return cls(cast(TensorDict, batch.batch)["scores"], extras, failures, first)


class NoRule:
    """The rule reward of a run whose rewards come from a model alone: 0 for every row."""

    def __call__(self, batch: DataProto) -> RewardResult:
        """Zeros."""
        return RewardResult(torch.zeros(len(batch)), {}, {})


class RewardManager:
    """Scores responses with a function of one row or of many.

    `compute_score(data_source, solution_str, ground_truth, extra_info)` returns a float, or a dict with
    `score` and more numbers that are logged, or None for "no value". `f(prompts, completions, **columns)`
    returns a list of these for the rows of one call. Either may name further columns of the dataset.

    A row whose call raises, takes longer than the limit, or returns no finite number costs that row only:
    where a call for many rows fails, each of them is tried alone.

    Args:
        function: `package.module:name` or `path/to/file.py:name`.
        tokenizer: decodes responses (special tokens left out).
        timeout_s: limit for one call.
        num_processes: processes that score side by side.

    Raises:
        RewardError: the function can't be found or can't be called as above.
    """

    def __init__(
        self,
        function: str,
        tokenizer: PreTrainedTokenizerBase,
        timeout_s: float = 30.0,
        num_processes: int = 1,
    ) -> None:
        self.takes_lists = takes_lists(load_reward_function(function))
        self.function, self.tokenizer, self.timeout_s = function, tokenizer, timeout_s
        self.num_processes = num_processes
        self.pool: ProcessPool | None = None
        self.first_failure = ""

    def start(self) -> None:
        """Start the processes, without waiting for them; the first call does it otherwise."""
        if self.pool is None:
            # Each process imports the function before it takes a call, so that no call's time counts that.
            self.pool = ProcessPool(
                max_workers=self.num_processes,
                initializer=prepare,
                initargs=[self.function],
                context=multiprocessing.get_context("spawn"),
            )
            self.pool.schedule(int)

    def __call__(self, batch: DataProto) -> RewardResult:
        """Score every row of a generated batch (`responses`, `response_lengths`, the dataset's columns)."""
        self.start()
        self.first_failure = ""
        rows = len(batch)
        together = self.takes_lists or waits(self.function)
        parts = cut(rows, self.num_processes) if together else one_by_one(slice(rows))
        result = gather_scores(self._score(self._arguments(batch), parts))
        return replace(result, first_failure=self.first_failure)

    def decode(self, batch: DataProto) -> list[str]:
        """The responses as text."""
        tensors = cast(TensorDict, batch.batch)
        ids, lengths = tensors["responses"].tolist(), tensors["response_lengths"].tolist()
        kept = [row[:length] for row, length in zip(ids, lengths, strict=True)]
        return self.tokenizer.batch_decode(kept, skip_special_tokens=True)

    def close(self) -> None:
        """End the processes."""
        if self.pool is not None:
            self.pool.stop()  # type: ignore[no-untyped-call]
            self.pool.join()
            self.pool = None

    def _arguments(self, batch: DataProto) -> dict[str, list[Any]]:
        """What the function accepts of a batch, each as a list over rows."""
        named = ((name.removeprefix(OWN), list(values)) for name, values in batch.non_tensor_batch.items())
        columns = {name: values for name, values in named if name != "uid"}
        texts = self.decode(batch)
        if self.takes_lists:
            prompts = columns.pop("raw_prompt")
            columns |= {"prompts": prompts, "completions": list(map(as_completion, prompts, texts))}
        else:
            truths = [(value or {}).get("ground_truth") for value in columns["reward_model"]]
            columns |= {"solution_str": texts, "ground_truth": truths}
        function = load_reward_function(self.function)
        return {name: values for name, values in columns.items() if accepts(function, name)}

    def _score(self, arguments: Mapping[str, list[Any]], parts: Sequence[slice]) -> list[Outcome]:
        """Outcomes of the rows of each part, one call per part; the rows of a failed call are tried alone."""
        futures = [self._schedule(arguments, part) for part in parts]
        found: list[Outcome] = []
        for part, future in zip(parts, futures, strict=True):
            outcomes, failure = self._result(future)
            if not failure:
                found += outcomes
            elif part.stop - part.start == 1:
                found.append(failure)
            else:
                found += self._score(arguments, one_by_one(part))
        return found

    def _schedule(self, arguments: Mapping[str, list[Any]], rows: slice) -> Future[Any]:
        part = {name: values[rows] for name, values in arguments.items()}
        pool = cast(ProcessPool, self.pool)
        return pool.schedule(call_reward, args=[self.function, part], timeout=self.timeout_s)

    def _result(self, future: Future[Any]) -> tuple[list[Outcome], str]:
        """A call's outcomes, and the kind of its failure or ""."""
        try:
            outcomes, note = future.result()
        except FutureTimeoutError:
            self._note(f"it took over {self.timeout_s:g} s and was ended")
            return [], "timed_out"
        except Exception as error:  # its process ended, or arguments that can't be sent to it
            outcomes, note = [], repr(error)
        if note:
            self._note(note)
        return outcomes, "" if outcomes else "raised"

    def _note(self, what: str) -> None:
        logger.warning("a call of the reward function went wrong: %s", what)
        self.first_failure = self.first_failure or what


def one_by_one(rows: slice) -> list[slice]:
    """The rows of a part as parts of one row."""
    return [slice(row, row + 1) for row in range(rows.start or 0, rows.stop)]


def cut(rows: int, processes: int) -> list[slice]:
    """Even parts of a batch: one per process, or more where those would be long."""
    count = max(processes, -(-rows // ROWS_PER_CALL))
    edges = [rows * part // count for part in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges) if stop > start]


def as_completion(prompt: object, text: str) -> object:
    """A response in the form of its prompt: text, or a list with one message."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]


def gather_scores(outcomes: Sequence[Outcome]) -> RewardResult:
    """Rows' outcomes as arrays; a name that a row lacks is NaN there."""
    rows = [outcome if isinstance(outcome, dict) else {} for outcome in outcomes]
    names = dict.fromkeys(name for row in rows for name in row)
    arrays = {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
    scores = arrays.pop("score", np.full(len(rows), math.nan))
    kinds = [outcome for outcome in outcomes if isinstance(outcome, str)]
    failures = {kind: kinds.count(kind) for kind in ("raised", "timed_out", "no_value")}
    return RewardResult(torch.from_numpy(scores).float(), arrays, failures)
