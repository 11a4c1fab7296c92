"""A user's reward function costs its row, never the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from rl_protocol import DataProto
from rl_trainer.errors import RewardError
from rl_trainer.reward.manager import RewardManager
from rl_trainer.reward.process import load_reward_function

FUNCTION = """
import asyncio, time
import numpy as np, torch

async def compute_score(data_source, solution_str, ground_truth, extra_info):
    if ground_truth == "raise": raise RuntimeError("no")
    if ground_truth == "hang": time.sleep(600)
    if ground_truth == "exit":
        import os; os._exit(1)
    if ground_truth == "none": return None
    if ground_truth == "nan": return float("nan")
    if ground_truth == "large": return 1e308 if extra_info["n"] else 0
    if ground_truth == "dict": return {"score": 2, "format": 1.0, "note": "text"}
    if ground_truth == "other": return {"score": 3, "length": extra_info["n"]}
    await asyncio.sleep(0)
    return float(solution_str == ground_truth)

class OddError(Exception):
    def __init__(self, first, second): super().__init__(first)

class OddScore(dict):
    pass

def odd(data_source, solution_str, ground_truth, extra_info):
    if ground_truth == "raise": raise OddError(1, 2)
    return OddScore(score=np.float32(0.5), more=torch.tensor(2), made=lambda: 0)

def with_columns(data_source, solution_str, ground_truth, extra_info, level, note="none"):
    return {"score": level, "note_length": len(note)}
"""

LIST_FUNCTION = """
import time

def right(prompts, completions, answer, **columns):
    assert sorted(columns) == ["data_source", "extra_info", "reward_model"], sorted(columns)
    if "raise" in answer: raise RuntimeError("no")
    if "hang" in answer: time.sleep(600)
    return [None if a == "none" else float(c == a) for c, a in zip(completions, answer, strict=True)]

async def rows_of_the_call(prompts, completions):
    return [len(prompts)] * len(completions)

def chat(prompts, completions, **columns):
    return [len(p[0]["content"]) + 10 * len(c[0]["content"]) for p, c in zip(prompts, completions)]

def too_few(prompts, completions):
    return [1.0]

def needs_more(completions, answer):
    return [1.0] * len(completions)
"""


def decode(ids: list[list[int]], skip_special_tokens: bool) -> list[str]:
    return ["".join(map(chr, row)) for row in ids]


def batch(truths: list[str], text: str = "yes", **more: list[Any]) -> DataProto:
    rows, width = len(truths), len(text) + 2
    responses = torch.zeros(rows, width, dtype=torch.int64)
    responses[:, : len(text)] = torch.tensor([ord(letter) for letter in text])
    mask = torch.zeros_like(responses)
    mask[:, : len(text)] = 1
    columns = {
        "data_source": ["test"] * rows,
        "reward_model": [{"ground_truth": truth} for truth in truths],
        "extra_info": [{"n": 7}] * rows,
        "uid": [str(row) for row in range(rows)],
    } | more
    return DataProto.from_dict(
        {"responses": responses, "response_mask": mask, "response_lengths": mask.sum(1)},
        {name: np.array(values, dtype=object) for name, values in columns.items()},
    )


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardManager]:
    file = tmp_path_factory.mktemp("reward") / "reward.py"
    file.write_text(FUNCTION)
    with managed(f"{file}:compute_score", processes=2) as manager:
        yield manager


@pytest.fixture(scope="module")
def list_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("reward") / "list_reward.py"
    file.write_text(LIST_FUNCTION)
    return str(file)


@contextmanager
def managed(function: str, processes: int = 1) -> Iterator[RewardManager]:
    tokenizer = cast(PreTrainedTokenizerBase, SimpleNamespace(batch_decode=decode))
    manager = RewardManager(function, tokenizer, timeout_s=5.0, num_processes=processes)
    yield manager
    manager.close()


def test_rows_without_a_value_are_marked_and_counted(manager: RewardManager) -> None:
    start = time.monotonic()
    truths = ["yes", "no", "raise", "none", "hang", "dict", "other", "nan", "large", "exit", "yes"]
    result = manager(batch(truths))
    nan = float("nan")
    expected = torch.tensor([1, 0, nan, nan, nan, 2, 3, nan, nan, nan, 1])
    torch.testing.assert_close(result.scores, expected, equal_nan=True)
    assert result.failures == {"raised": 2, "timed_out": 1, "no_value": 3}
    assert "raised" in result.first_failure or "took over" in result.first_failure
    assert time.monotonic() - start < 60


def test_keys_that_a_row_lacks_are_nan(manager: RewardManager) -> None:
    extras = manager(batch(["dict", "other", "yes"])).extras
    np.testing.assert_array_equal(extras["format"], [1, np.nan, np.nan])
    np.testing.assert_array_equal(extras["length"], [np.nan, 7, np.nan])
    assert "note" not in extras


def test_further_columns_reach_a_function_that_names_them(manager: RewardManager) -> None:
    rows = batch(["yes"] * 2, level=[3, 4], unread=["x", "y"])
    with managed(manager.function.replace(":compute_score", ":with_columns")) as named:
        result = named(rows)
    assert result.scores.tolist() == [3, 4] and result.extras["note_length"].tolist() == [4, 4]
    assert manager(rows).scores.tolist() == [1, 1]  # which takes no column but its four


def test_what_only_the_function_s_file_can_load_stays_in_its_process(manager: RewardManager) -> None:
    with managed(manager.function.replace(":compute_score", ":odd")) as odd:
        sys.modules.pop("rl_trainer_reward_reward")  # the process that asks has never loaded the file
        odd.start()
        result = odd(batch(["yes", "raise", "yes"]))
    torch.testing.assert_close(result.scores, torch.tensor([0.5, float("nan"), 0.5]), equal_nan=True)
    assert result.failures["raised"] == 1 and result.extras["more"][0] == 2


def test_a_function_of_lists_gets_the_columns_as_lists(list_file: str) -> None:
    answers = ["yes", "no", "none", "yes"]
    with managed(f"{list_file}:right") as manager:
        result = manager(batch(answers, answer=answers, raw_prompt=["p"] * 4))
    torch.testing.assert_close(result.scores, torch.tensor([1, 0, float("nan"), 1]), equal_nan=True)
    assert result.failures == {"raised": 0, "timed_out": 0, "no_value": 1}


def test_a_call_that_fails_for_many_rows_costs_only_the_rows_that_fail_alone(list_file: str) -> None:
    answers = ["yes", "raise", "yes", "no", "hang", "yes"]
    with managed(f"{list_file}:right", processes=2) as manager:
        result = manager(batch(answers, answer=answers, raw_prompt=["p"] * 6))
    nan = float("nan")
    torch.testing.assert_close(result.scores, torch.tensor([1, nan, 1, 0, nan, 1]), equal_nan=True)
    assert result.failures == {"raised": 1, "timed_out": 1, "no_value": 0}


def test_rows_are_spread_over_processes_and_calls_stay_short(list_file: str) -> None:
    with managed(f"{list_file}:rows_of_the_call", processes=2) as manager:
        for rows, sizes in ((1, [1]), (5, [2, 3]), (100, [25] * 4)):
            scores = manager(batch(["yes"] * rows, raw_prompt=["p"] * rows)).scores.tolist()
            assert scores == [float(size) for size in sizes for _ in range(size)]


def test_a_chat_prompt_has_a_completion_of_messages(list_file: str) -> None:
    prompt = [{"role": "user", "content": "four"}]
    with managed(f"{list_file}:chat") as manager:
        assert manager(batch(["yes"], raw_prompt=[prompt])).scores.tolist() == [34]


def test_a_list_of_another_length_is_worth_nothing(list_file: str) -> None:
    with managed(f"{list_file}:too_few") as manager:
        result = manager(batch(["yes"] * 3, raw_prompt=["p"] * 3))
    assert result.scores.isnan().all() and result.failures["no_value"] == 3


def test_a_function_of_neither_form_is_an_error_at_once(list_file: str) -> None:
    with pytest.raises(RewardError, match="it has no data_source, solution_str"):
        load_reward_function(f"{list_file}:needs_more")
    with pytest.raises(RewardError, match="not a function"):
        load_reward_function("rl_trainer.data.tasks:LETTERS")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_colon", "package.module:name"),
        ("rl_trainer.data.tasks:missing", "can't be loaded"),
        ("no.such.module:f", "can't be loaded"),
        ("missing.py:f", "can't be loaded"),
        ("rl_trainer.data.tasks:copy_rows", "must accept"),
    ],
)
def test_a_function_that_cannot_be_used_is_an_error_at_once(spec: str, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        load_reward_function(spec)


def test_a_function_is_found_by_import_path() -> None:
    function: Any = load_reward_function("rl_trainer.data.tasks:last_number")
    assert function("addition", "3 + 4 is 7.", "7", None) == 1.0
    assert function("addition", "The answer is 34", "7", None) == 0.0
    assert function("addition", "", "7", None) == 0.0
