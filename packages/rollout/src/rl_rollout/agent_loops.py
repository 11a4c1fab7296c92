"""Agent loops by name, as a configuration chooses them."""

from __future__ import annotations

import importlib
from typing import Any

from rl_rollout.agent_loop import AgentLoop
from rl_rollout.config import RolloutConfig
from rl_rollout.errors import RolloutConfigError
from rl_rollout.tool_loop import ToolLoop
from rl_rollout.tools import Calculator, PythonTool


def build_agent_loop(config: RolloutConfig, tokenizer: Any) -> AgentLoop | None:
    """The loop that `config.agent_loop` names; None where a row is one plain generation.

    "tool" is `ToolLoop` with the calculator and the Python tool; `package.module:function` is called with
    (config, tokenizer) and returns an `AgentLoop`.

    Raises:
        RolloutConfigError: the name can't be resolved, or what it gives is no agent loop.
    """
    name = config.agent_loop
    if not name:
        return None
    if name == "tool":
        return ToolLoop(tokenizer, [Calculator(), PythonTool()], config.max_turns)
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise ImportError("it has no colon")
        loop = getattr(importlib.import_module(module), function)(config, tokenizer)
    except (ImportError, AttributeError) as error:
        raise RolloutConfigError(
            f"agent_loop={name!r} can't be used ({error}): write 'tool' or package.module:function"
        ) from error
    if not isinstance(loop, AgentLoop):
        raise RolloutConfigError(f"agent_loop={name!r} gave {type(loop).__name__}, not an AgentLoop")
    return loop
