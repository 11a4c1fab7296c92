"""Tools for the multi-turn loop: a calculator and a Python interpreter with limits."""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from rl_rollout.agents.sandbox import Limits, Program, run_program
from rl_rollout.errors import RLRolloutError


class ToolError(RLRolloutError, ValueError):
    """A call can't be carried out; the policy gets the text as the tool's answer."""


class Tool(ABC):
    """Something the policy can call by name."""

    name: str

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any]) -> str:
        """The tool's answer. Raises ToolError where the arguments are wrong."""


def _text_argument(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ToolError(f"argument {name!r} must be a string")
    return value


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_MAX_BITS = 4096


class Calculator(Tool):
    """Evaluates `expression`: numbers, + - * / // % ** and brackets, nothing else."""

    name = "calculator"

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """See `Tool.call`."""
        text = _text_argument(arguments, "expression")
        try:
            return str(_evaluate(ast.parse(text.strip(), mode="eval").body))
        except (SyntaxError, ArithmeticError, ValueError, RecursionError, MemoryError) as error:
            raise ToolError(f"can't evaluate {text[:80]!r}: {error}") from error


def _evaluate(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) * int(abs(left)).bit_length() > _MAX_BITS:
            raise ToolError("the result is too large")
        return _bounded(_BINARY[type(node.op)](left, right))
    raise ToolError("only numbers, + - * / // % ** and brackets are understood")


def _bounded(value: Any) -> int | float:
    if isinstance(value, complex) or (isinstance(value, int) and value.bit_length() > _MAX_BITS):
        raise ToolError("the result is too large or not real")
    return value  # type: ignore[no-any-return]


class PythonTool(Tool):
    """Runs `code` in a fresh Python process and returns what it printed.

    The process has no environment, an empty folder, no network, and limits on CPU and wall time, memory, file
    size and output; nothing that it starts is left after the call. How far that holds depends on the system:
    docs/rollout/python-tool.md.
    """

    name = "python"

    def __init__(
        self, timeout_s: float = 5.0, memory_bytes: int = 512 << 20, output_chars: int = 4000
    ) -> None:
        self._limits = Limits(timeout_s, memory_bytes, output_bytes=4 * output_chars)
        self._output_chars = output_chars

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """See `Tool.call`."""
        code = _text_argument(arguments, "code")
        try:
            source = code.encode()
        except UnicodeEncodeError as error:
            place = f"character {error.start}"
            raise ToolError(f"argument 'code' is no text at {place}: {error.reason}") from error
        if b"\0" in source:
            raise ToolError(f"argument 'code' has a NUL at character {code.index(chr(0))}")
        ran = await run_program(Program(source), self._limits)
        text = ran.output.decode(errors="replace")[: self._output_chars]
        return f"{text}\nerror: stopped after {self._limits.timeout_s} s" if ran.timed_out else text
