"""Whether a text's final number is the right one, exactly."""

from __future__ import annotations

import re
from fractions import Fraction

from ..errors import RewardError

_NUMBER = re.compile(
    r"""
    (?: (?<![\w.)\]}]) (?P<sign>[-+]) )?  # after a number or a bracket a minus subtracts
    [ ]? [$€£¥]? [ ]?
    (?P<inner>(?<=[$€£¥])-)?  # $-5
    (?P<digits> \d{1,3}(?:,\d{2,3})*,\d{3}(?!\d) | \d+ | (?<!\d)(?=\.\d) )
    (?P<decimals>\.\d+)?
    (?: [eE](?P<exponent>[-+]?\d{1,3})(?!\w) )?
    """,
    re.VERBOSE,
)


def final_number(text: str) -> Fraction | None:
    """The first number after the last `####` that has one, or else the last number of the text."""
    text = text.replace("\u2212", "-")  # the minus sign, as typeset
    _, *marked = text.split("####")
    for part in reversed(marked):
        if first := _NUMBER.search(part):
            return _value(first)
    numbers = list(_NUMBER.finditer(text))
    return _value(numbers[-1]) if numbers else None


def same_number(text: str, truth: object) -> bool:
    """Whether a text's final number equals that of the ground truth.

    Raises:
        RewardError: the ground truth has no number.
    """
    right = final_number(str(truth))
    if right is None:
        raise RewardError(f"gsm8k: the row's ground truth {truth!r} has no number")
    return final_number(text) == right


def _value(match: re.Match[str]) -> Fraction:
    digits = match["digits"].replace(",", "") or "0"
    # Not by int(): it refuses more than 4300 digits.
    value = Fraction(_integer(digits)) + (_decimals(match["decimals"]) if match["decimals"] else 0)
    if match["exponent"]:
        value *= Fraction(10) ** int(match["exponent"])
    negative = (match["sign"] == "-") != bool(match["inner"])
    return -value if negative else value


def _integer(digits: str) -> int:
    """Digits of any number as an integer, in parts that int() takes."""
    value = 0
    for start in range(0, len(digits), 4000):
        part = digits[start : start + 4000]
        value = value * 10 ** len(part) + int(part)
    return value


def _decimals(text: str) -> Fraction:
    return Fraction(_integer(text[1:]), 10 ** (len(text) - 1))
