"""The process that holds the graded code: runs it, then carries out what the judge asks of it.

Nothing here is out of the graded code's reach, and nothing needs to be: all that leaves are values, and the
judge believes of none of them that it is the right one.
"""

from __future__ import annotations

import asyncio
import builtins
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from .wire import Closed, Line, decode, encode

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *args, **kwargs: function(*args, **kwargs),
    "attribute": getattr,
    "set_attribute": setattr,
    "delete_attribute": delattr,
    "instance": isinstance,
    "coroutine": asyncio.run,
    **{name: getattr(builtins, name) for name in (
        "len", "iter", "next", "reversed", "bool", "str", "repr", "int", "float", "complex", "hash", "abs",
        "round", "format",
    )},
    **{name: getattr(operator, name) for name in (
        "getitem", "setitem", "delitem", "index", "eq", "lt", "le", "gt", "ge", "neg", "pos", "invert", "add",
        "sub", "mul", "truediv", "floordiv", "mod", "matmul", "and_", "or_", "xor", "lshift", "rshift",
    )},
    "enter": lambda context: type(context).__enter__(context),
    "exit": lambda context: type(context).__exit__(context, None, None, None),
}  # fmt: skip


class Graded:
    """The graded code's names, and its objects that the judge knows by number."""

    def __init__(self, line: Line, names: dict[str, Any]) -> None:
        self._line, self._names = line, names
        self._objects: list[Any] = []  # kept, so that ids stay theirs
        self._numbers: dict[int, int] = {}
        self._functions: dict[int, Callable[..., Any]] = {}

    def serve(self) -> dict[str, Any]:
        """Answer the judge until it answers what was asked of it, if anything was."""
        while True:
            message = self._line.receive()
            if "do" not in message:
                return message
            self._line.send(self._answer(message))

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            if message["do"] == "name":
                return {"value": encode(self._names[message["name"]], self._other)}
            arguments = self._decode(message["args"])
            named = self._decode(message["kwargs"])
            value = _OPERATIONS[message["do"]](*arguments, **named)
            answer = {"value": self._encode(value)}
            after = [self._encode(arguments), self._encode(named)]
            if after != [message["args"], message["kwargs"]]:
                answer["after"] = after  # it changed what it was given
            return answer
        except Closed:
            raise
        except BaseException as error:
            return {"error": self.describe(error)}

    def describe(self, error: BaseException) -> list[Any]:
        """Class, classes above it, arguments."""
        names = [kind.__name__ for kind in type(error).__mro__]
        plain = [part if isinstance(part, (int, str)) else str(part) for part in error.args]
        return [names, encode(plain, self._other)]

    def _encode(self, value: Any) -> Any:
        try:
            return encode(value, self._other)
        except RecursionError:  # it contains itself
            return self._other(value)

    def _decode(self, data: Any) -> Any:
        return decode(data, self._known)

    def _known(self, data: list[Any]) -> Any:
        tag, *parts = data
        if tag == "type":
            return getattr(builtins, parts[0])
        if tag == "iterator":
            return iter([self._decode(part) for part in parts])
        return self._function(parts[0]) if tag == "function" else self._objects[parts[0]]

    def _other(self, value: Any) -> list[Any]:
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if vars(builtins).get(getattr(value, "__name__", "")) is value and isinstance(value, type):
            return ["type", value.__name__]
        if isinstance(value, type) and issubclass(value, Exception):
            return ["exception", [kind.__name__ for kind in value.__mro__]]
        if isinstance(value, types.FunctionType) and hasattr(value, "judges_number"):
            return ["function", value.judges_number]
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        number = self._numbers[id(value)]
        if isinstance(value, types.CoroutineType):
            return ["coroutine", number]
        return ["object", number, getattr(value, "__module__", None), getattr(value, "__name__", None)]

    def _function(self, number: int) -> Callable[..., Any]:
        """A function of the judge's, which an argument brought."""

        def ask(*args: Any, **kwargs: Any) -> Any:
            self._line.send({"do": number, "args": self._encode(args), "kwargs": self._encode(kwargs)})
            answer = self.serve()
            if "error" in answer:
                names, values = answer["error"]
                raise _exception(names)(*self._decode(values))
            return self._decode(answer["value"])

        ask.judges_number = number  # type: ignore[attr-defined]
        return self._functions.setdefault(number, ask)


def _exception(names: list[str]) -> type[Exception]:
    found = (getattr(builtins, name, None) for name in names)
    return next((kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception)), Exception)


def main(fd: int) -> None:
    """Run the code from standard input, tell the judge its names, and serve."""
    line = Line(fd)
    source = sys.stdin.buffer.read().decode()
    module = types.ModuleType("solution")  # not "__main__": a program's own trial run is not asked for
    sys.modules["solution"] = module
    graded = Graded(line, module.__dict__)
    try:
        exec(compile(source, "<solution>", "exec"), module.__dict__)
    except BaseException as error:
        line.send({"error": graded.describe(error)})
        raise
    line.send({"names": [name for name in module.__dict__ if not name.startswith("__")]})
    graded.serve()
