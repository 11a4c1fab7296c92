"""The rewards that come with the trainer."""

from __future__ import annotations

from typing import Any

import pytest

from rl_trainer.reward.process import call_reward, load_reward_function
from rl_trainer.reward.scores import BUILT_IN


def scored(name: str, row: dict[str, Any]) -> float:
    ((outcome,), note) = call_reward(name, {key: [value] for key, value in row.items()})
    assert isinstance(outcome, dict) and not note
    return outcome["score"]


@pytest.mark.parametrize(
    ("name", "text", "truth", "score"),
    [
        ("gsm8k", "3 + 4 = 7\n#### 1,007", "1007", 1.0),
        ("gsm8k", "so 12 or 13.", "13", 1.0),
        ("gsm8k", "none", "13", 0.0),
        ("exact_match", " yes\n", "yes", 1.0),
        ("exact_match", "yes!", "yes", 0.0),
        ("regex_match", "it is 42 km", r"\b42\b", 1.0),
        ("regex_match", "it is 421 km", r"\b42\b", 0.0),
        ("think_format", "<think>a\nb</think> 7", None, 1.0),
        ("think_format", "<think>a</think>", None, 0.0),
        ("think_format", "<think>a</think><think>b</think> 7", None, 0.0),
        ("target_length", "abcde", None, 0.5),
        ("code_tests", "Here:\n```python\ndef f(x):\n    return x + 1\n```", "assert f(1) == 2", 1.0),
        ("code_tests", "```python\ndef f(x):\n    return x\n```", "assert f(1) == 2", 0.0),
        ("code_tests", "```python\nimport sys; sys.exit(0)\n```", "assert False", 0.0),
    ],
)
def test_built_in_rewards(name: str, text: str, truth: Any, score: float) -> None:
    row = {
        "data_source": "t",
        "solution_str": text,
        "ground_truth": truth,
        "extra_info": {"target_length": 10},
    }
    assert scored(name, row | {"solution_str": text}) == score


def test_math_verify_knows_equal_values() -> None:
    pytest.importorskip("math_verify")
    row = {
        "data_source": "t",
        "solution_str": r"\boxed{\frac{1}{2}}",
        "ground_truth": "$0.5$",
        "extra_info": None,
    }
    assert scored("math_verify", row) == 1.0
    assert scored("math_verify", row | {"ground_truth": "$0.6$"}) == 0.0


def test_every_built_in_is_found_by_its_name() -> None:
    assert all(load_reward_function(name) is function for name, function in BUILT_IN.items())
