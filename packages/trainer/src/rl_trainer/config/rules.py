"""What a value of a key may be, and the error that names key, value and rule."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import ConfigError


def check(ok: bool, key: str, value: object, rule: str) -> None:
    """Raise a `ConfigError` unless the rule holds."""
    if not ok:
        raise ConfigError(f"{key}={value!r}: {rule}")


def one_of(key: str, value: str, choices: Sequence[str]) -> None:
    """A name among some."""
    check(value in choices, key, value, f"choose {', '.join(choices[:-1])} or {choices[-1]}")


def positive(key: str, value: float) -> None:
    """A finite number above 0."""
    check(0 < value < math.inf, key, value, "must be positive")


def at_least(key: str, value: float, lowest: float) -> None:
    """A finite number not below another."""
    check(lowest <= value < math.inf, key, value, f"must be {lowest:g} or more")


def within(key: str, value: float, low: float, high: float) -> None:
    """A number between two, both included."""
    check(low <= value <= high, key, value, f"must lie between {low:g} and {high:g}")
