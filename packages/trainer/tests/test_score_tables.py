"""The rewards that ship, over tables of what is right, what is wrong, and what only looks right."""

from __future__ import annotations

import asyncio
import time

import pytest
from code_submissions import CHEATS, HONEST
from math_pairs import PAIRS as MATH_PAIRS
from number_pairs import PAIRS as NUMBER_PAIRS

from rl_trainer.errors import RewardError
from rl_trainer.reward.code import last_block
from rl_trainer.reward.scores import code_tests, gsm8k, math_verify


def test_gsm8k_is_right_on_every_pair() -> None:
    wrong = [pair for pair in NUMBER_PAIRS if gsm8k("t", pair[0], pair[1], None) != pair[2]]
    assert len(NUMBER_PAIRS) >= 40
    assert not wrong


def test_gsm8k_refuses_a_ground_truth_without_a_number() -> None:
    with pytest.raises(RewardError, match="has no number"):
        gsm8k("t", "#### 3", "three", None)


@pytest.mark.slow
def test_math_verify_is_right_on_every_pair() -> None:
    pytest.importorskip("math_verify")
    wrong = [pair for pair in MATH_PAIRS if math_verify("t", pair[0], pair[1], None) != pair[2]]
    assert len(MATH_PAIRS) >= 200
    assert sum(not right for _, _, right in MATH_PAIRS) >= 60
    assert not wrong


@pytest.mark.parametrize(
    "answer",
    ["9^{9^{9^{9}}}", "10^{10^{10}}", "99999999!", "(" * 1000, r"\frac{1}{0}", "{" * 300, "\\" * 300],
)
def test_math_verify_neither_hangs_nor_raises(answer: str) -> None:
    pytest.importorskip("math_verify")
    math_verify("t", r"\boxed{1}", "1", None)
    started = time.monotonic()
    assert math_verify("t", rf"\boxed{{{answer}}}", "7", None) == 0.0
    assert math_verify("t", r"\boxed{7}", answer, None) == 0.0
    assert time.monotonic() - started < 15


def grade(code: str, tests: object) -> float:
    return asyncio.run(code_tests("t", f"So:\n```python\n{code}\n```\nDone.", tests, None))


@pytest.mark.parametrize("name", HONEST)
def test_code_that_passes_earns_and_code_that_fails_does_not(name: str) -> None:
    code, tests, right = HONEST[name]
    assert grade(code, tests) == right


@pytest.mark.parametrize("name", CHEATS)
def test_code_that_cheats_earns_nothing(name: str) -> None:
    code, tests = CHEATS[name]
    assert grade(code, tests) == 0.0


def test_code_tests_takes_a_list_of_assertions() -> None:
    assert grade("def f(x):\n    return x", ["assert f(1) == 1", "assert f(2) == 2"]) == 1.0


@pytest.mark.parametrize("tests", ["assert f( == 1", "class A: pass\nassert f(A()) == 1"])
def test_tests_that_cannot_be_used_cost_the_row_not_the_answer(tests: str) -> None:
    with pytest.raises(RewardError, match="ground truth"):
        grade("def f(x):\n    return x", tests)


def test_the_last_block_counts_in_each_spelling() -> None:
    assert last_block("```python\na\n```\n```py\r\nb\r\n```") == "b\r\n"
    assert last_block("```Python3\na\n```") == "a\n"
    assert last_block("no block") == "no block"
    assert grade("def f():\n    return '\ud800'", "assert f() == 1") == 0.0
