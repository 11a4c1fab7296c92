"""A user's reward function costs its row, never the run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from rl_protocol import DataProto
from rl_trainer.errors import RewardError
from rl_trainer.reward import RewardManager
from rl_trainer.reward_process import load_reward_function

FUNCTION = """
import asyncio, time

async def compute_score(data_source, solution_str, ground_truth, extra_info):
    if ground_truth == "raise": raise RuntimeError("no")
    if ground_truth == "hang": time.sleep(600)
    if ground_truth == "exit":
        import os; os._exit(1)
    if ground_truth == "none": return None
    if ground_truth == "nan": return float("nan")
    if ground_truth == "dict": return {"score": 2, "format": 1.0, "note": "text"}
    if ground_truth == "other": return {"score": 3, "length": extra_info["n"]}
    await asyncio.sleep(0)
    return float(solution_str == ground_truth)
"""


def decode(ids: list[list[int]], skip_special_tokens: bool) -> list[str]:
    return ["".join(map(chr, row)) for row in ids]


def batch(truths: list[str], text: str = "yes") -> DataProto:
    rows, width = len(truths), len(text) + 2
    responses = torch.zeros(rows, width, dtype=torch.int64)
    responses[:, : len(text)] = torch.tensor([ord(letter) for letter in text])
    mask = torch.zeros_like(responses)
    mask[:, : len(text)] = 1
    columns = {
        "data_source": ["test"] * rows,
        "reward_model": [{"ground_truth": truth} for truth in truths],
        "extra_info": [{"n": 7}] * rows,
    }
    attention = torch.cat([torch.ones(rows, 4, dtype=torch.int64), mask], dim=1)
    return DataProto.from_dict(
        {"responses": responses, "response_mask": mask, "attention_mask": attention},
        {name: np.array(values, dtype=object) for name, values in columns.items()},
    )


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardManager]:
    file = tmp_path_factory.mktemp("reward") / "reward.py"
    file.write_text(FUNCTION)
    tokenizer = cast(PreTrainedTokenizerBase, SimpleNamespace(batch_decode=decode))
    manager = RewardManager(f"{file}:compute_score", tokenizer, timeout_s=5.0, num_processes=2)
    yield manager
    manager.close()


def test_rows_without_a_value_are_marked_and_counted(manager: RewardManager) -> None:
    start = time.monotonic()
    truths = ["yes", "no", "raise", "none", "hang", "dict", "other", "nan", "exit", "yes"]
    result = manager(batch(truths))
    nan = float("nan")
    expected = torch.tensor([1, 0, nan, nan, nan, 2, 3, nan, nan, 1])
    torch.testing.assert_close(result.scores, expected, equal_nan=True)
    assert result.failures == {"raised": 2, "timed_out": 1, "no_value": 2}
    assert time.monotonic() - start < 60


def test_keys_that_a_row_lacks_are_nan(manager: RewardManager) -> None:
    extras = manager(batch(["dict", "other", "yes"])).extras
    np.testing.assert_array_equal(extras["format"], [1, np.nan, np.nan])
    np.testing.assert_array_equal(extras["length"], [np.nan, 7, np.nan])
    assert "note" not in extras


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_colon", "package.module:name"),
        ("rl_trainer.tasks:missing", "can't be loaded"),
        ("no.such.module:f", "can't be loaded"),
        ("missing.py:f", "can't be loaded"),
        ("rl_trainer.tasks:copy_rows", "must accept"),
    ],
)
def test_a_function_that_cannot_be_used_is_an_error_at_once(spec: str, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        load_reward_function(spec)


def test_a_function_is_found_by_import_path() -> None:
    function: Any = load_reward_function("rl_trainer.tasks:last_number")
    assert function("addition", "3 + 4 is 7.", "7", None) == 1.0
    assert function("addition", "The answer is 34", "7", None) == 0.0
    assert function("addition", "", "7", None) == 0.0
