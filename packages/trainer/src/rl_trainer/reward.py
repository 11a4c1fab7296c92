"""Rule rewards: a user's Python function, run in processes of its own with a limit per row."""

from __future__ import annotations

import logging
import math
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from pebble import ProcessPool
from tensordict import TensorDict
from transformers import PreTrainedTokenizerBase

from rl_protocol import DataProto

from .errors import RewardError
from .reward_process import load_reward_function, score_row

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardResult:
    """What a batch earned.

    Attributes:
        scores: `[B]` float32; NaN where the row has no value.
        extras: further numbers that the function returned, by name, `[B]` float64, NaN where missing.
        failures: what went wrong, by kind (`raised`, `timed_out`, `no_value`), as counts.
    """

    scores: torch.Tensor
    extras: dict[str, np.ndarray]
    failures: dict[str, int]

    def components(self, keys: Sequence[str]) -> torch.Tensor:
        """Numbers of the function's dict as components of the reward, `[B, K]` float32; missing ones are 0.

        Raises:
            RewardError: no row has the number.
        """
        columns = {"score": self.scores.numpy(), **self.extras}
        missing = [key for key in keys if key not in columns]
        if missing:
            raise RewardError(
                f"algorithm.gdpo_reward_keys names {missing}; the reward function gave {list(columns)}"
            )
        return torch.from_numpy(np.nan_to_num(np.stack([columns[key] for key in keys], axis=1))).float()

    def metrics(self) -> dict[str, float]:
        """Mean of each further number, and failures by kind."""
        means = {f"reward/{name}": float(np.nanmean(values)) for name, values in self.extras.items()}
        return means | {f"reward/{kind}/sum": float(count) for kind, count in self.failures.items()}


class NoRule:
    """The rule reward of a run whose rewards come from a model alone: 0 for every row."""

    def __call__(self, batch: DataProto) -> RewardResult:
        """Zeros."""
        return RewardResult(torch.zeros(len(batch)), {}, {})

    def close(self) -> None:
        """Nothing to end."""


class RewardManager:
    """Scores responses with `compute_score(data_source, solution_str, ground_truth, extra_info)`.

    The function returns a float, or a dict with `score` and more numbers that are logged, or None for
    "no value". A row whose call raises, takes longer than the limit, or returns no finite number costs
    that row only.

    Args:
        function: `package.module:name` or `path/to/file.py:name`.
        tokenizer: decodes responses (special tokens left out).
        timeout_s: limit for one row.
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
        load_reward_function(function)
        self.function, self.tokenizer, self.timeout_s = function, tokenizer, timeout_s
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPool(max_workers=num_processes, context=context)

    def __call__(self, batch: DataProto) -> RewardResult:
        """Score every row of a generated batch (`responses`, `response_mask`, the dataset's columns)."""
        rows = self._rows(batch)
        futures = [
            self.pool.schedule(score_row, args=[self.function, row], timeout=self.timeout_s) for row in rows
        ]
        return gather_scores([self._outcome(future) for future in futures])

    def decode(self, batch: DataProto) -> list[str]:
        """The responses as text."""
        tensors = cast(TensorDict, batch.batch)
        lengths = tensors["attention_mask"][:, -tensors["responses"].shape[1] :].sum(1).tolist()
        ids = tensors["responses"].tolist()
        kept = [row[:length] for row, length in zip(ids, lengths, strict=True)]
        return self.tokenizer.batch_decode(kept, skip_special_tokens=True)

    def close(self) -> None:
        """End the processes."""
        self.pool.stop()  # type: ignore[no-untyped-call]
        self.pool.join()

    def _rows(self, batch: DataProto) -> list[dict[str, Any]]:
        columns = batch.non_tensor_batch
        truths = [(value or {}).get("ground_truth") for value in columns["reward_model"]]
        return [
            {"data_source": source, "solution_str": text, "ground_truth": truth, "extra_info": extra}
            for source, text, truth, extra in zip(
                columns["data_source"], self.decode(batch), truths, columns["extra_info"], strict=True
            )
        ]

    def _outcome(self, future: Future[Any]) -> dict[str, float] | str:
        """A row's numbers, or the kind of its failure."""
        try:
            return read_score(future.result())
        except FutureTimeoutError:
            logger.warning("the reward function took over %.0f s for a row; it is left out", self.timeout_s)
            return "timed_out"
        except Exception as error:  # the boundary to a user's code: whatever it raised costs its row only
            logger.warning("the reward function raised for a row, which is left out: %r", error)
            return "raised"


def read_score(value: object) -> dict[str, float] | str:
    """The numbers in what a reward function returned, or `no_value`."""
    numbers = value if isinstance(value, Mapping) else {"score": value}
    read = {str(name): float(x) for name, x in numbers.items() if isinstance(x, (int, float, np.number))}
    return read if math.isfinite(read.get("score", math.nan)) else "no_value"


def gather_scores(outcomes: Sequence[dict[str, float] | str]) -> RewardResult:
    """Rows' outcomes as arrays; a name that a row lacks is NaN there."""
    rows = [outcome if isinstance(outcome, dict) else {} for outcome in outcomes]
    names = dict.fromkeys(name for row in rows for name in row)
    arrays = {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
    scores = arrays.pop("score", np.full(len(rows), math.nan))
    kinds = [outcome for outcome in outcomes if isinstance(outcome, str)]
    failures = {kind: kinds.count(kind) for kind in ("raised", "timed_out", "no_value")}
    return RewardResult(torch.from_numpy(scores).float(), arrays, failures)
