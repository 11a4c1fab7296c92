"""Small tasks with rule rewards: what the quick start and the tiny configuration train on."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HELD_OUT_PAIRS = 20
LETTERS = "abcd"


def addition_rows(seed: int = 0) -> tuple[list[Row], list[Row]]:
    """All 81 sums of two digits from 1 to 9 as chat prompts: 61 to train on, 20 held out."""
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    random.Random(seed).shuffle(pairs)
    rows = [
        {
            "data_source": "addition",
            "prompt": [{"role": "user", "content": f"What is {a} + {b}? Answer with just the number."}],
            "reward_model": {"ground_truth": str(a + b)},
        }
        for a, b in pairs
    ]
    return rows[HELD_OUT_PAIRS:], rows[:HELD_OUT_PAIRS]


def last_number(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """1 if the last number in the response is the right one, else 0."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", solution_str)
    return float(bool(numbers) and float(numbers[-1]) == float(ground_truth))


def copy_rows(count: int, length: int, seed: int) -> list[Row]:
    """Random words of letters to copy, as plain text prompts `abca=`."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(LETTERS, k=length)) for _ in range(count)]
    return [{"data_source": "copy", "prompt": f"{w}=", "reward_model": {"ground_truth": w}} for w in words]


def positions_right(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """Share of positions at which the response has the right letter; letters past the end cost theirs."""
    right = sum(a == b for a, b in zip(solution_str, ground_truth, strict=False))
    return right / max(len(ground_truth), len(solution_str))


def write_jsonl(path: Path, rows: Iterable[Row]) -> Path:
    """Write rows as JSON lines and give the path back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
