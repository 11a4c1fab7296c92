"""Rewards as others write them: several with weights, coroutines that wait together, tensors and dicts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from rl_protocol import DataProto
from rl_trainer.config.loading import load_config
from rl_trainer.config.tree import RewardConfig
from rl_trainer.errors import RLTrainerError
from rl_trainer.loop.scoring import Scoring
from rl_trainer.plan.resolve import resolve
from rl_trainer.reward.manager import RewardResult
from rl_trainer.reward.process import call_reward, waits
from rl_trainer.reward.returned import as_result
from rl_trainer.run.task_runner import build_reward
from rl_trainer.tiny import tiny_overrides

FUNCTIONS = """
import asyncio

async def slow(data_source, solution_str, ground_truth, extra_info):
    await asyncio.sleep(0.25)
    if ground_truth == "raise":
        raise RuntimeError("no")
    return None if ground_truth == "none" else len(ground_truth)

def long(data_source, solution_str, ground_truth, extra_info):
    return {"score": len(ground_truth), "even": len(ground_truth) % 2}

def right(data_source, solution_str, ground_truth, extra_info):
    return None if ground_truth == "none" else float(solution_str == ground_truth)
"""


def decode(ids: list[list[int]], skip_special_tokens: bool) -> list[str]:
    return ["".join(map(chr, row)) for row in ids]


def batch(truths: list[str], text: str = "yes") -> DataProto:
    rows, width = len(truths), len(text) + 2
    responses = torch.zeros(rows, width, dtype=torch.int64)
    responses[:, : len(text)] = torch.tensor([ord(letter) for letter in text])
    columns = {
        "data_source": ["test"] * rows,
        "reward_model": [{"ground_truth": truth} for truth in truths],
        "extra_info": [{}] * rows,
    }
    lengths = torch.full((rows,), len(text))
    return DataProto.from_dict(
        {"responses": responses, "response_lengths": lengths},
        {name: np.array(values, dtype=object) for name, values in columns.items()},
    )


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(FUNCTIONS)
    return str(tmp_path / "own.py")


@contextmanager
def started(config: RewardConfig) -> Iterator[Any]:
    tokenizer = cast(PreTrainedTokenizerBase, SimpleNamespace(batch_decode=decode))
    reward = cast(Any, build_reward(config, tokenizer))
    yield reward
    reward.close()


def test_rows_of_a_coroutine_function_wait_side_by_side(file: str) -> None:
    truths = ["a" * (row % 4) for row in range(32)]
    arguments = {
        "data_source": ["t"] * 32,
        "solution_str": ["x"] * 32,
        "ground_truth": truths,
        "extra_info": [{}] * 32,
    }
    start = time.perf_counter()
    outcomes, note = call_reward(f"{file}:slow", arguments)
    assert time.perf_counter() - start < 2.0  # one after the other they would take 8 s
    assert outcomes == [{"score": float(len(truth))} for truth in truths] and note == ""


def test_a_coroutine_that_raises_costs_its_own_row(file: str) -> None:
    with started(RewardConfig(function=f"{file}:slow")) as reward:
        result = reward(batch(["aa", "raise", "none", "a"]))
    assert result.scores.isnan().tolist() == [False, True, True, False]
    assert result.failures == {"raised": 1, "timed_out": 0, "no_value": 1}


@pytest.mark.parametrize(("spec", "together"), [("slow", True), ("long", False), ("code_tests", False)])
def test_only_what_waits_is_called_for_many_rows_at_once(file: str, spec: str, together: bool) -> None:
    assert waits(spec if spec == "code_tests" else f"{file}:{spec}") == together


def test_several_rules_are_added_with_weights(file: str) -> None:
    config = RewardConfig(functions=[f"{file}:long", f"{file}:right"], weights=[0.5, -2.0])
    with started(config) as reward:
        result = reward(batch(["yes", "four", "none"]))
    assert result.scores[:2].tolist() == [0.5 * 3 - 2.0, 0.5 * 4] and math.isnan(result.scores[2])
    assert result.extras["long"].tolist() == [3, 4, 4] and result.extras["long/even"].tolist() == [1, 0, 0]
    assert result.components(["long", "right"]).tolist() == [[3, 1], [4, 0], [4, 0]]


def test_weights_are_one_each_where_none_are_given(file: str) -> None:
    with started(RewardConfig(functions=[f"{file}:long", f"{file}:long"])) as reward:
        result = reward(batch(["yes"]))
    assert result.scores.tolist() == [6] and set(result.extras) > {"long", "long_1"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["reward.function=gsm8k", "reward.functions=[gsm8k]"], "takes the place of reward.function"),
        (["reward.function=''", "reward.functions=[gsm8k]", "reward.weights=[1,2]"], "one number for each"),
        (["reward.function=''", "reward.functions=[gsm8k,gsm9k]"], "gsm9k"),
    ],
)
def test_rules_that_do_not_fit_are_refused_before_the_start(
    tmp_path: Path, keys: list[str], message: str
) -> None:
    with pytest.raises(RLTrainerError, match=message):
        resolve(load_config("tiny_grpo", [*tiny_overrides(tmp_path), *keys]))


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, 2.0]),
        torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0, 0.0]]),
        {"reward_tensor": torch.tensor([1.0, 2.0]), "reward_extra_info": {"acc": [0, 1], "text": ["a", "b"]}},
    ],
)
def test_a_function_of_batches_may_return_a_tensor_or_a_dict(value: Any) -> None:
    result = as_result(value, batch(["a", "b"]))
    assert result.scores.tolist() == [1.0, 2.0]
    assert {name: list(column) for name, column in result.extras.items()} == (
        {"acc": [0, 1]} if isinstance(value, dict) else {}
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, 2.0], "returned list for 2 rows"),
        (torch.ones(3), r"returned \(3,\) for 2 rows"),
        (torch.ones(2, 5), "other tokens than the last"),
    ],
)
def test_what_is_no_reward_of_a_batch_is_refused(value: Any, message: str) -> None:
    with pytest.raises(RLTrainerError, match=message):
        as_result(value, batch(["a", "b"]))


def test_numbers_that_float32_cannot_hold_are_no_reward() -> None:
    result = as_result(torch.tensor([1.0, math.inf, -1e308], dtype=torch.float64), batch(["a", "b", "c"]))
    torch.testing.assert_close(result.scores, torch.tensor([1.0, math.nan, math.nan]), equal_nan=True)
    assert result.failures == {"no_value": 2}


def test_rule_and_model_together_give_a_finite_score_or_none() -> None:
    rule = RewardResult(torch.tensor([1.0, 3e38, 1.0, math.nan]), {}, {})
    scoring = Scoring(cast(Any, SimpleNamespace()), None)
    with mock.patch.multiple(
        scoring,
        by_rule=lambda rows, validation: rule,
        by_model=lambda rows: torch.tensor([1.0, 3e38, math.nan, 1.0]),
        create=False,
    ):
        scores, said = scoring.of(cast(Any, None))
    torch.testing.assert_close(scores, torch.tensor([2.0, *[math.nan] * 3]), equal_nan=True)
    assert said is rule


def test_components_that_are_not_finite_count_nothing() -> None:
    result = RewardResult(torch.ones(4), {"length": np.array([2.0, math.inf, 1e308, math.nan])}, {})
    assert result.components(["score", "length"]).tolist() == [[1, 2], [1, 0], [1, 0], [1, 0]]
