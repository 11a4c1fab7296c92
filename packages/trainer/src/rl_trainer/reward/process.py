"""What runs inside a reward process: a user's function, of either form. Imports nothing heavy."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from ..errors import RewardError
from .scores import BUILT_IN

LARGEST = (2 - 2**-23) * 2.0**127  # in float32, as which scores travel

RewardFunction = Callable[..., Any]
Outcome = dict[str, float] | str  # a row's numbers, or the kind of its failure
ROW_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
LIST_ARGUMENTS = ("prompts", "completions")


def call_reward(spec: str, arguments: Mapping[str, list[Any]]) -> tuple[list[Outcome], str]:
    """Call the reward function for the rows whose arguments these are.

    Returns:
        Each row's outcome, none where the function raised, and what the log should know. Nothing of the
        function's own types: the process that asks may not be able to load them.
    """
    try:
        function = load_reward_function(spec)
        if takes_lists(function):
            return read_scores(_wait_for(function(**arguments)), len(arguments["completions"]))
        rows = [dict(zip(arguments, row, strict=True)) for row in zip(*arguments.values(), strict=True)]
        if len(rows) > 1:
            return asyncio.run(_together(function, rows))
        value = _wait_for(function(**rows[0]))
        score = read_score(value)
        return [score], _remark(value) if score == "no_value" else ""
    except Exception as error:  # the boundary to a user's code: whatever it raised costs its row only
        return [], f"it raised {error!r}"


def prepare(spec: str) -> None:
    """Import what the function needs before the first call."""
    load_reward_function(spec)


def read_scores(value: object, rows: int) -> tuple[list[Outcome], str]:
    """Each row's numbers in what a function of lists returned; a list of another length has none."""
    values = _plain(value)
    if not isinstance(values, Sequence) or len(values) != rows:
        return ["no_value"] * rows, f"it returned {str(values)[:200]} for {rows} rows, not a list of as many"
    scores = [read_score(one) for one in values]
    lost = next((one for one, score in zip(values, scores, strict=True) if score == "no_value"), None)
    return scores, _remark(lost)


def _remark(value: object) -> str:
    """What the log says of a value that is none; None means that there is none."""
    return (
        ""
        if value is None
        else f"it returned {value!r:.200}, not a finite number (of float32) or a dict with one as score"
    )


def read_score(value: object) -> Outcome:
    """The numbers in what a reward function returned, or `no_value`."""
    numbers = value if isinstance(value, Mapping) else {"score": value}
    plain = {str(name): _plain(number) for name, number in numbers.items()}
    read = {name: float(number) for name, number in plain.items() if isinstance(number, (int, float))}
    return read if abs(read.get("score", math.nan)) <= LARGEST else "no_value"


def takes_lists(function: RewardFunction) -> bool:
    """Whether a function is `f(prompts, completions, **columns)`: one call for many rows."""
    return set(LIST_ARGUMENTS) <= set(inspect.signature(function).parameters)


def waits(spec: str) -> bool:
    """Whether a function of one row waits for others (a coroutine function): many rows wait at the same time.

    Those that ship compute instead, and would take each other's time.
    """
    return spec not in BUILT_IN and inspect.iscoroutinefunction(load_reward_function(spec))


def accepts(function: RewardFunction, name: str) -> bool:
    """Whether a function can be called with an argument of this name."""
    parameters = inspect.signature(function).parameters
    taken = parameters.get(name)
    if taken is not None:
        return taken.kind in (taken.POSITIONAL_OR_KEYWORD, taken.KEYWORD_ONLY)
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


@cache
def load_reward_function(spec: str) -> RewardFunction:
    """Find a built-in reward by name, or `package.module:name` or `path/to/file.py:name`.

    Raises:
        RewardError: module, file or name does not exist, or the signature does not fit.
    """
    if spec in BUILT_IN:
        return BUILT_IN[spec]
    module_name, colon, name = spec.rpartition(":")
    if not colon:
        names = ", ".join(BUILT_IN)
        raise RewardError(
            f"reward.function={spec!r}: write package.module:name or path/to/file.py:name, or one of {names}"
        )
    try:
        module = (
            _load_file(module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
        )
        function = getattr(module, name)
    except (ImportError, AttributeError, FileNotFoundError, SyntaxError) as error:
        raise RewardError(f"reward.function={spec!r} can't be loaded: {error}") from error
    _check_signature(spec, function)
    return cast(RewardFunction, function)


def _check_signature(spec: str, function: object) -> None:
    """Further parameters are columns of the dataset, which are not known here."""
    if not callable(function):
        raise RewardError(f"reward.function={spec!r} is not a function but {type(function).__name__}")
    wanted = LIST_ARGUMENTS if takes_lists(function) else ROW_ARGUMENTS
    missing = [name for name in wanted if not accepts(function, name)]
    if missing:
        forms = f"({', '.join(ROW_ARGUMENTS)}) or ({', '.join(LIST_ARGUMENTS)}, **columns)"
        raise RewardError(f"reward.function={spec!r} must accept {forms}; it has no {', '.join(missing)}")


def _load_file(path: str) -> Any:
    name = f"rl_trainer_reward_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _wait_for(value: Any) -> object:
    return asyncio.run(_wait(value)) if inspect.isawaitable(value) else value


async def _together(function: RewardFunction, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Outcome], str]:
    """Outcomes of rows that wait side by side, each for itself."""
    values = await asyncio.gather(*(function(**row) for row in rows), return_exceptions=True)
    raised = [repr(value) for value in values if isinstance(value, BaseException)]
    note = f"{len(raised)} of {len(rows)} rows raised, the first {raised[0]}" if raised else ""
    return ["raised" if isinstance(v, BaseException) else read_score(v) for v in values], note


async def _wait(value: Any) -> object:
    return await value


def _plain(value: Any) -> object:
    """Numbers and lists instead of numpy's and torch's."""
    return value.tolist() if hasattr(value, "tolist") else value
