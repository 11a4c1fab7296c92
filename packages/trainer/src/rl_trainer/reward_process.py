"""What runs inside a reward process: a user's function on one row. Imports nothing heavy."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from .errors import RewardError
from .scores import BUILT_IN

RewardFunction = Callable[..., Any]
ROW_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


def score_row(function: str, row: Mapping[str, Any]) -> object:
    """Call the reward function on one row, waiting for it where it is a coroutine function."""
    value = load_reward_function(function)(**row)
    return asyncio.run(_wait(value)) if inspect.isawaitable(value) else value


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
    try:
        inspect.signature(function).bind(**dict.fromkeys(ROW_ARGUMENTS))
    except TypeError as error:
        wanted = ", ".join(ROW_ARGUMENTS)
        raise RewardError(f"reward.function={spec!r} must accept ({wanted}): {error}") from error
    return cast(RewardFunction, function)


def _load_file(path: str) -> Any:
    name = f"rl_trainer_reward_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


async def _wait(value: Any) -> object:
    return await value
