"""Rule rewards that come with the trainer, by the name that `reward.function` takes.

Each is called as `compute_score(data_source, solution_str, ground_truth, extra_info)` and returns a number
in [0, 1], or a dict with `score`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def gsm8k(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """1 if the number after the last `####`, or else the last number, equals the ground truth."""
    _, marked, tail = solution_str.rpartition("####")
    numbers = NUMBER.findall(tail if marked else solution_str)
    if not numbers:
        return 0.0
    answer = numbers[0] if marked else numbers[-1]
    return float(float(answer.replace(",", "")) == float(str(ground_truth).replace(",", "")))


def exact_match(data_source: str, solution_str: str, ground_truth: object, extra_info: object) -> float:
    """1 if the response is the ground truth, white space at the ends aside."""
    return float(solution_str.strip() == str(ground_truth).strip())


def regex_match(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """1 if the ground truth, a regular expression, is found in the response."""
    return float(re.search(ground_truth, solution_str) is not None)


def math_verify(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """1 if the response's final answer is mathematically equal to the ground truth (package math-verify)."""
    from math_verify import parse, verify

    # The limit per row is the reward process's own: math-verify's needs signals, which only main threads get.
    gold, answer = (parse(text, parsing_timeout=None) for text in (str(ground_truth), solution_str))
    return float(verify(gold, answer, timeout_seconds=None))


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


async def code_tests(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """1 if the response's last Python block passes the ground truth, a program of assertions after it.

    Both run in a process of their own with limits on time and memory.
    """
    from rl_rollout import PythonTool

    blocks = re.findall(r"```(?:python)?\n(.*?)```", solution_str, re.DOTALL)
    passed = secrets.token_hex(8)  # printed last; a response can't print it itself
    code = f"{blocks[-1] if blocks else solution_str}\n\n{ground_truth}\n\nprint({passed!r})\n"
    return float((await PythonTool().call({"code": code})).rstrip().endswith(passed))


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
