"""Rule rewards that come with the trainer, by the name that `reward.function` takes.

Each is called as `compute_score(data_source, solution_str, ground_truth, extra_info)` and returns a number
in [0, 1], or a dict with `score`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from .code import last_block, passes
from .math import same_answer
from .numbers import same_number


def gsm8k(data_source: str, solution_str: str, ground_truth: object, extra_info: object) -> float:
    """1 if the number after the last `####` with one, or else the last number, equals the ground truth."""
    return float(same_number(solution_str, ground_truth))


def exact_match(data_source: str, solution_str: str, ground_truth: object, extra_info: object) -> float:
    """1 if the response is the ground truth, white space at the ends aside."""
    return float(solution_str.strip() == str(ground_truth).strip())


def regex_match(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """1 if the ground truth, a regular expression, is found in the response."""
    return float(re.search(ground_truth, solution_str) is not None)


def math_verify(data_source: str, solution_str: str, ground_truth: object, extra_info: object) -> float:
    """1 if the response's final answer is mathematically equal to the ground truth (package math-verify)."""
    return float(same_answer(solution_str, str(ground_truth)))


def think_format(data_source: str, solution_str: str, ground_truth: object, extra_info: object) -> float:
    """1 if the response is `<think>...</think>` followed by an answer, each tag once."""
    once = solution_str.count("<think>") == 1 and solution_str.count("</think>") == 1
    return float(once and re.fullmatch(r"\s*<think>.+</think>\s*\S.*", solution_str, re.DOTALL) is not None)


def target_length(
    data_source: str, solution_str: str, ground_truth: object, extra_info: Mapping[str, Any]
) -> float:
    """Falls linearly from 1 at `extra_info["target_length"]` characters to 0 at none or twice as many."""
    target = float(extra_info["target_length"])
    return max(0.0, 1.0 - abs(len(solution_str) - target) / target)


async def code_tests(data_source: str, solution_str: str, ground_truth: object, extra_info: object) -> float:
    """1 if the response's last Python block passes the ground truth: assertions that use its names.

    They are a program or a list of lines, and run in a process of their own: the code can neither read what
    is expected nor write the verdict.
    """
    lines = [ground_truth] if isinstance(ground_truth, str) else cast("Iterable[object]", ground_truth)
    return float(await passes(last_block(solution_str), "\n".join(map(str, lines))))


def reasoning_gym(
    data_source: str, solution_str: str, ground_truth: object, extra_info: Mapping[str, Any]
) -> float:
    """reasoning-gym's own score of the answer: what stands in `<answer>` tags, or else the whole response."""
    from reasoning_gym import get_score_answer_fn

    answers = re.findall(r"<answer>(.*?)</answer>", solution_str, re.DOTALL)
    answer = (answers[-1] if answers else solution_str).strip()
    entry = extra_info["entry"]
    return float(get_score_answer_fn(entry["metadata"]["source_dataset"])(answer=answer, entry=entry))


BUILT_IN = {
    "gsm8k": gsm8k,
    "exact_match": exact_match,
    "regex_match": regex_match,
    "math_verify": math_verify,
    "think_format": think_format,
    "target_length": target_length,
    "code_tests": code_tests,
    "reasoning_gym": reasoning_gym,
}
