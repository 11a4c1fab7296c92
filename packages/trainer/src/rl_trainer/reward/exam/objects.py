"""The judge's view of what stays with the graded code: objects, functions, classes, exceptions.

An object of the graded code never equals a plain value and is neither larger nor smaller than one, and no
operator sends it one: it would learn what it is compared with, and could say yes to all. What it can be asked
is what a caller asks: calls, attributes, items, length, iteration, conversion to a plain value, and operators
with other objects of the graded code.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any, Protocol

# What may be read of a function or class; all other names with two underscores are protocols of libraries.
_SPECIAL = ("__name__", "__qualname__", "__module__", "__annotations__", "__dict__")


class Asks(Protocol):
    """Has the graded process carry out one operation."""

    def __call__(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """The operation's result. Raises what it raised."""


class Handle:
    """An object of the graded code, by number."""

    __slots__ = ("_ask", "_number")

    _ask: Asks
    _number: int

    def __init__(self, ask: Asks, number: int) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _SPECIAL:
            raise AttributeError(name)
        return self._ask("attribute", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set_attribute", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._ask("delete_attribute", self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and bool(self._ask("eq", self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int(self._ask("hash", self))

    def __contains__(self, item: object) -> bool:
        return any(item is one or item == one for one in iter(self))

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Handle) and bool(self._ask("instance", instance, self))

    def __iter__(self) -> Iterator[Any]:
        return self._ask("iter", self)  # type: ignore[no-any-return]

    def __exit__(self, *error: object) -> bool:
        return bool(self._ask("exit", self))


def _own(operation: str) -> Callable[..., Any]:
    """An operation on the object, with the arguments that its caller gives (an index, a number of digits)."""
    return lambda self, *args: self._ask(operation, self, *args)


def _with_another(operation: str) -> Callable[[Handle, object], Any]:
    """An operation on two objects of the graded code; with anything else it is a TypeError."""

    def apply(self: Handle, other: object) -> Any:
        return self._ask(operation, self, other) if isinstance(other, Handle) else NotImplemented

    return apply


_OWN = (
    "len", "next", "reversed", "bool", "str", "repr", "int", "float", "complex", "abs", "round", "format",
    "getitem", "setitem", "delitem", "index", "neg", "pos", "invert", "enter",
)  # fmt: skip
_WITH_ANOTHER = (
    "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "and_", "or_", "xor",
    "lshift", "rshift",
)  # fmt: skip
for _name in _OWN:
    setattr(Handle, f"__{_name}__", _own(_name))
for _name in _WITH_ANOTHER:
    setattr(Handle, f"__{_name.strip('_')}__", _with_another(_name))


def made_coroutine(ask: Asks, handle: Handle) -> Any:
    """A coroutine that runs the graded code's one, in an event loop of its own there."""

    async def wait() -> Any:
        return ask("coroutine", handle)

    return wait()


class Exceptions:
    """Classes of exceptions by the names of a class and of those above it."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, ...], type[Exception]] = {}

    def find(self, names: tuple[str, ...], may_end_iteration: bool = False) -> type[Exception]:
        """The built-in class, or one made under that name.

        One that ends a loop must not come from a call: `all(map(f, cases))` would be true.
        """
        if not names or names[0] == "BaseException":
            return RuntimeError
        known = getattr(builtins, names[0], None)
        if isinstance(known, type) and issubclass(known, Exception):
            ends = issubclass(known, (StopIteration, StopAsyncIteration))
            return RuntimeError if ends and not may_end_iteration else known
        if names not in self._made:
            self._made[names] = type(str(names[0]), (self.find(names[1:]),), {})
        return self._made[names]

    def make(self, names: tuple[str, ...], args: list[Any], may_end_iteration: bool) -> Exception:
        """An exception; where its class wants other arguments, a RuntimeError with those."""
        try:
            return self.find(names, may_end_iteration)(*args)
        except Exception:
            return RuntimeError(*args)


def items_of(value: object) -> Iterator[Any] | None:
    """What an iterator or a view of a dict yields; None for anything else."""
    kinds = (Iterator, KeysView, ValuesView, ItemsView)
    return iter(value) if isinstance(value, kinds) else None
