"""The rule reward: 1 if the answer is right."""

from __future__ import annotations


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> dict[str, float]:
    """The response is text of all turns with the calculator's between: `3*4=12;12`, or a guess, `15`."""
    answer = solution_str.rpartition(";")[2]
    return {"score": float(answer == ground_truth), "asked": float(";" in solution_str)}
