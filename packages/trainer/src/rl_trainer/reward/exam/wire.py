"""Plain Python values as JSON, and the line over which the two processes call each other.

What comes over the line is data and nothing else: numbers, texts and the containers of the standard library,
built here from JSON. An object that is none of these stays where it is; a number that stands for it travels.
"""

from __future__ import annotations

import datetime as dates
import json
import socket
import sys
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

sys.set_int_max_str_digits(0)  # results may be huge

Made = Callable[..., Any]

# Values of exactly these types: what they consist of, and how they are made from it.
_PLAIN: dict[type, tuple[Callable[[Any], list[Any]], Made]] = {
    complex: (lambda v: [v.real, v.imag], complex),
    bytes: (lambda v: [v.hex()], bytes.fromhex),
    bytearray: (lambda v: [v.hex()], bytearray.fromhex),
    range: (lambda v: [v.start, v.stop, v.step], range),
    slice: (lambda v: [v.start, v.stop, v.step], slice),
    Decimal: (lambda v: [str(v)], Decimal),
    Fraction: (lambda v: [v.numerator, v.denominator], Fraction),
    dates.date: (lambda v: [v.isoformat()], dates.date.fromisoformat),
    dates.datetime: (lambda v: [v.isoformat()], dates.datetime.fromisoformat),
    dates.time: (lambda v: [v.isoformat()], dates.time.fromisoformat),
    dates.timedelta: (lambda v: [v.days, v.seconds, v.microseconds], dates.timedelta),
    list: (list, lambda *v: list(v)),
    tuple: (list, lambda *v: v),
    set: (list, lambda *v: set(v)),
    frozenset: (list, lambda *v: frozenset(v)),
    deque: (list, lambda *v: deque(v)),
    dict: (lambda v: [list(item) for item in v.items()], lambda *v: dict(v)),
    Counter: (lambda v: [list(item) for item in v.items()], lambda *v: Counter(dict(v))),
    OrderedDict: (lambda v: [list(item) for item in v.items()], lambda *v: OrderedDict(v)),
}
_BY_NAME = {kind.__name__: make for kind, (_, make) in _PLAIN.items()}
# Of a subclass goes what it is below: a rule of its own for equality stays behind.
_BASES: tuple[Made, ...] = (
    int, float, str, complex, bytes, bytearray, list, tuple, set, frozenset, Counter, OrderedDict, dict,
    deque,
)  # fmt: skip
_NUMPY_KINDS = "biufcSU"


class Closed(BaseException):
    """The other process has ended or closed the line; nothing can be asked any more."""


def encode(value: Any, other: Callable[[Any], list[Any]]) -> Any:
    """A value as JSON takes it; `other` encodes what is not plain, as a list that begins with a tag."""
    if value is None or type(value) in (bool, float, str):
        return value
    if type(value) is int:
        return value if abs(value) < 1 << 62 else ["int", hex(value)]
    if type(value) in _PLAIN:
        parts = _PLAIN[type(value)][0](value)
        if not isinstance(value, (dict, str)):
            return [type(value).__name__, *(encode(part, other) for part in parts)]
        return [type(value).__name__, *([encode(k, other), encode(v, other)] for k, v in parts)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = [encode(part, other) for part in tuple(value)]
        return ["named", type(value).__name__, list(value._fields), *parts]
    if type(value).__module__ == "numpy":
        return _encode_numpy(value, other)
    for base in _BASES:
        if isinstance(value, cast(type, base)):
            # str() of an enumeration's member is its name
            return encode(str.__str__(value) if base is str else base(value), other)
    return other(value)


def _encode_numpy(value: Any, other: Callable[[Any], list[Any]]) -> Any:
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if not kind or kind not in _NUMPY_KINDS or isinstance(value, type):
        return other(value)
    if type(value).__name__ != "ndarray":
        return encode(value.item(), other)
    parts = [encode(part, other) for part in value.ravel().tolist()]
    return ["ndarray", value.dtype.str, list(value.shape), *parts]


def decode(data: Any, other: Callable[[list[Any]], Any]) -> Any:
    """The value of what `encode` made; `other` decodes the tags that are none of plain values."""
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise ValueError("an object where a value belongs")
        return data
    tag, *parts = data
    if tag == "int":
        return int(parts[0], 16)
    if tag in ("dict", "Counter", "OrderedDict"):
        return _BY_NAME[tag](*((decode(key, other), decode(value, other)) for key, value in parts))
    if tag in _BY_NAME:
        return _BY_NAME[tag](*(decode(part, other) for part in parts))
    if tag == "named":
        name, fields, *rest = parts
        return namedtuple(name, fields)(*(decode(part, other) for part in rest))
    if tag == "ndarray":
        return _decode_numpy(parts[0], parts[1], [decode(part, other) for part in parts[2:]])
    return other(data)


def _decode_numpy(kind: str, shape: list[int], flat: list[Any]) -> Any:
    import numpy as np

    dtype = np.dtype(kind)
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"an array of {dtype}")
    return np.array(flat, dtype).reshape(shape)


def merge(old: Any, new: Any) -> Any:
    """Give a container, and those inside it, the contents that its copy has now; the result."""
    if type(old) is not type(new):
        return new
    if isinstance(old, list):
        old[:] = [merge(a, b) for a, b in zip(old, new, strict=False)] + new[len(old) :]
    elif isinstance(old, dict):
        contents = {key: merge(old[key], value) if key in old else value for key, value in new.items()}
        old.clear()
        old |= contents
    elif isinstance(old, (set, deque, bytearray)):
        old.clear()
        (old.update if isinstance(old, set) else old.extend)(new)
    elif type(old).__name__ == "ndarray" and old.shape == new.shape and old.dtype == new.dtype:
        old[...] = new
    elif isinstance(old, tuple) and len(old) == len(new):
        for a, b in zip(old, new, strict=True):
            merge(a, b)
    else:
        return new
    return old


class Line:
    """Messages to and from the other process, one JSON text per line."""

    def __init__(self, fd: int) -> None:
        self._file = socket.socket(fileno=fd).makefile("rwb")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises Closed."""
        try:
            self._file.write(json.dumps(message).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise Closed from error

    def receive(self) -> dict[str, Any]:
        """Wait for the next message. Raises Closed, also where the other process sent none."""
        try:
            message = json.loads(self._file.readline())
        except (OSError, ValueError, RecursionError) as error:
            raise Closed from error
        if not isinstance(message, dict):
            raise Closed
        return message
