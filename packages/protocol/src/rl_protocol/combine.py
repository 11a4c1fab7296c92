"""Stacking and uniting the columns of batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl_protocol.equality import values_equal
from rl_protocol.errors import ColumnConflictError, MissingColumnError
from rl_protocol.rows import stack_rows


def _describe(column: Any) -> str:
    return f"{getattr(column, 'dtype', type(column).__name__)} {tuple(getattr(column, 'shape', ()))}"


def union_columns(kind: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of both sides; one that both hold must be equal by value."""
    for name, column in right.items():
        if name in left and not values_equal(left[name], column):
            raise ColumnConflictError(
                f"{kind} column {name!r} differs: {_describe(left[name])} and {_describe(column)} differ in "
                f"value. Rename or drop one before the union."
            )
    return {**left, **{name: column for name, column in right.items() if name not in left}}


def check_names(number: int, kind: str, names: Iterable[str], expected: Iterable[str]) -> None:
    """Raise `MissingColumnError` unless part `number` has exactly the columns that part 0 has."""
    missing, extra = sorted({*expected} - {*names}), sorted({*names} - {*expected})
    if missing or extra:
        raise MissingColumnError(
            f"concat: part {number} lacks {kind} columns {missing} and has {extra} that part 0 lacks; all "
            f"parts must hold the same columns."
        )


def concat_columns(
    parts: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Stack `(tensors, objects)` of several parts row on row; every part must hold the same columns."""
    first_tensors, first_objects = parts[0]
    for number, (tensors, objects) in enumerate(parts[1:], 1):
        check_names(number, "tensor", tensors, first_tensors)
        check_names(number, "object", objects, first_objects)
    return (
        {name: stack_rows(name, [tensors[name] for tensors, _ in parts]) for name in first_tensors},
        {name: stack_rows(name, [objects[name] for _, objects in parts]) for name in first_objects},
    )
