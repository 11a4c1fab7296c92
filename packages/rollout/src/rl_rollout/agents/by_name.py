"""Agent loops by name, as a configuration chooses them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from rl_rollout.agents.loop import AgentLoop
from rl_rollout.agents.tool_loop import ToolLoop
from rl_rollout.agents.tools import Calculator, PythonTool
from rl_rollout.config import RolloutConfig
from rl_rollout.errors import RolloutConfigError


def build_agent_loop(config: RolloutConfig, tokenizer: Any) -> AgentLoop | None:
    """The loop that `config.agent_loop` names; None where a row is one plain generation.

    "tool" is `ToolLoop` with the calculator and the Python tool; `package.module:function` or
    `path/to/file.py:function` is called with (config, tokenizer) and returns an `AgentLoop`.

    Raises:
        RolloutConfigError: the name can't be resolved, or what it gives is no agent loop.
    """
    name = config.agent_loop
    make = find_agent_loop(name)
    if make is None:
        return None
    loop = make(config, tokenizer)
    if not isinstance(loop, AgentLoop):
        raise RolloutConfigError(f"agent_loop={name!r} gave {type(loop).__name__}, not an AgentLoop")
    return loop


def find_agent_loop(name: str) -> Callable[[RolloutConfig, Any], Any] | None:
    """What makes the loop of that name, called with (config, tokenizer); None for "".

    Raises:
        RolloutConfigError: the name can't be resolved.
    """
    if not name:
        return None
    if name == "tool":
        return _tool_loop
    module, colon, function = name.rpartition(":")
    try:
        if not colon:
            raise ImportError("it has no colon")
        found = _load_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
        return cast(Callable[[RolloutConfig, Any], Any], getattr(found, function))
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise RolloutConfigError(
            f"agent_loop={name!r} can't be used ({error}): write 'tool', package.module:function or "
            "path/to/file.py:function"
        ) from error


def _tool_loop(config: RolloutConfig, tokenizer: Any) -> AgentLoop:
    return ToolLoop(tokenizer, [Calculator(), PythonTool()], config.max_turns)


def _load_file(path: Path) -> ModuleType:
    name = f"rl_rollout_agent_loop_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickle look a module up
    spec.loader.exec_module(module)
    return module
