"""The process that asserts: runs the test program, and says its verdict where only this process can.

Names that the test program doesn't define are the graded code's. What it says of them is data (see `wire`) or
stands for an object there (see `objects`); passed is said when the program's last line has run, here.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import importlib
import os
import sys
import threading
import types
from typing import Any

from .objects import Exceptions, Handle, items_of, made_coroutine
from .wire import Line, decode, encode, merge

# Where names that a test uses without importing them may come from, if the graded code imported them.
_MODULES = (
    "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq",
    "itertools", "json", "math", "numpy", "operator", "random", "re", "statistics", "string", "sys", "typing",
)  # fmt: skip
# Built-in functions that a test may mean the graded code's by, where it names nothing else of that.
_SHADOWED = {
    "sum", "max", "min", "pow", "hash", "filter", "map", "range", "reversed", "bin", "hex", "oct", "divmod",
    "zip", "next", "ord", "chr", "format",
}  # fmt: skip
_PR_SET_DUMPABLE = 4


class BrokenTestError(BaseException):
    """The test program can't be judged, whatever the graded code is."""


class Judge:
    """Asks the graded process."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._lock = threading.RLock()
        self._functions: list[Any] = []
        self._exceptions = Exceptions()
        self._changes: list[tuple[list[Any], list[Any]]] = []

    def ask(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Have an operation carried out; its result. Raises what it raised."""
        given = [list(args), kwargs]
        message = {"do": operation, "args": self._encode(given[0]), "kwargs": self._encode(kwargs)}
        answer = self._exchange(message, operation)
        if answer.get("after") is not None:
            self._changes.append((given, [self._decode(part) for part in answer["after"]]))
        return self._decode(answer.get("value"))

    def settle(self) -> None:
        """What calls did to their arguments, done to the test's own.

        After a statement, not amid it: what a test compares a result with must not depend on the call.
        """
        while self._changes:
            merge(*self._changes.pop(0))

    def name(self, name: str) -> Any:
        """The value of a global name of the graded code's."""
        data = self._exchange({"do": "name", "name": name}, "name").get("value")
        if isinstance(data, list) and data[0] == "module":
            if data[1] in _MODULES and name in (data[1], "np"):
                return importlib.import_module(data[1])
            raise NameError(name)
        if isinstance(data, list) and data[0] == "object" and data[3] == name:
            module = str(data[2]).lstrip("_")
            if module in _MODULES and hasattr(importlib.import_module(module), name):
                return getattr(importlib.import_module(module), name)
        return self._decode(data)

    def _exchange(self, message: dict[str, Any], operation: str) -> dict[str, Any]:
        with self._lock:
            self._line.send(message)
            while "do" in (answer := self._line.receive()):
                self._line.send(self._call_back(answer))
        if "error" in answer:
            names, args = answer["error"]
            raise self._exceptions.make(tuple(names), self._decode(args), operation == "next")
        return answer

    def _call_back(self, message: dict[str, Any]) -> dict[str, Any]:
        """A function of the test's, called by the graded code."""
        try:
            function = self._functions[message["do"]]
            value = function(*self._decode(message["args"]), **self._decode(message["kwargs"]))
            return {"value": self._encode(value)}
        except Exception as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            return {"error": [names, self._encode([str(part) for part in error.args])]}

    def _encode(self, value: Any) -> Any:
        return encode(value, self._own)

    def _own(self, value: Any) -> list[Any]:
        if isinstance(value, Handle):
            return ["object", value._number]
        if vars(builtins).get(getattr(value, "__name__", "")) is value and isinstance(value, type):
            return ["type", value.__name__]
        items = items_of(value)
        if items is not None:
            return ["iterator", *(self._encode(item) for item in items)]
        if callable(value):
            if value not in self._functions:
                self._functions.append(value)
            return ["function", self._functions.index(value)]
        raise BrokenTestError(f"it gives the graded code a {type(value).__name__}, which is no plain value")

    def _decode(self, data: Any) -> Any:
        return decode(data, self._others)

    def _others(self, data: list[Any]) -> Any:
        tag, *parts = data
        if tag == "function":
            return self._functions[parts[0]]
        if tag == "exception":
            return self._exceptions.find(tuple(parts[0]))
        if tag == "type":
            known = getattr(builtins, parts[0], None)
            return known if isinstance(known, type) else None
        handle = Handle(self.ask, int(parts[0]) if tag != "module" else -1)
        return made_coroutine(self.ask, handle) if tag == "coroutine" else handle


class Names(dict[str, Any]):
    """Built-in names, and the graded code's where there is none of that name."""

    def __init__(self, judge: Judge, graded: list[str], program: ast.Module) -> None:
        names = {node.id for node in ast.walk(program) if isinstance(node, ast.Name)}
        super().__init__(vars(builtins))
        self._judge, self._graded = judge, set(graded)
        if not any(name in self._graded and name not in self for name in names):
            for name in _SHADOWED & names & self._graded:
                del self[name]

    def __missing__(self, name: str) -> Any:
        if name not in self._graded:
            raise KeyError(name)
        value = self._judge.name(name)
        if isinstance(value, Handle):
            self[name] = value  # functions and classes; a number may be another one next time
        return value


class Settling(ast.NodeTransformer):
    """Puts a call of `settle` after every simple statement that calls something."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Each list of statements."""
        super().generic_visit(node)
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                setattr(node, block, [one for statement in statements for one in self._followed(statement)])
        return node

    def _followed(self, statement: ast.stmt) -> list[ast.stmt]:
        if hasattr(statement, "body") or not any(isinstance(node, ast.Call) for node in ast.walk(statement)):
            return [statement]
        call = ast.Expr(ast.Call(ast.Name(" settle", ast.Load()), [], []))
        return [statement, ast.fix_missing_locations(ast.copy_location(call, statement))]


def run(source: str, line: Line) -> bool:
    """Whether the test program runs to its end, or ends itself with success.

    Raises:
        BrokenTestError: it is no program, or passes on what can't be passed.
    """
    try:
        program = ast.parse(source)
        code = compile(Settling().visit(ast.parse(source)), "<tests>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BrokenTestError(f"it is no Python program: {error}") from error
    greeting = line.receive()
    if "names" not in greeting:
        return False  # the graded code itself failed
    judge = Judge(line)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv[:] = ["tests"]
    module.__dict__["__builtins__"] = Names(judge, [str(name) for name in greeting["names"]], program)
    module.__dict__[" settle"] = judge.settle
    try:
        exec(code, module.__dict__)
    except SystemExit as end:
        return not end.code  # as unittest.main() ends; the graded code can't raise it here
    return True


def main(line_fd: int, verdict_fd: int) -> None:
    """Run the test program from standard input and write the verdict."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # not for others of this user to look into
    try:
        verdict = "passed" if run(sys.stdin.buffer.read().decode(), Line(line_fd)) else "failed"
    except BrokenTestError as error:
        verdict = f"broken: {error}"
    except BaseException:
        verdict = "failed"
    os.write(verdict_fd, verdict.encode()[:4000])
    os._exit(0)  # whatever the test program has left running
