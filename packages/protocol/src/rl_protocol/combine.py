"""Batches stacked row on row, and united column beside column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl_protocol.contents import Contents
from rl_protocol.equality import values_equal
from rl_protocol.errors import ColumnConflictError, MissingColumnError, ShapeError
from rl_protocol.meta import concat_meta, union_meta
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


def union(left: Contents, right: Contents) -> Contents:
    """The columns of both, for the same rows; what both hold must be equal by value."""
    if left.has_columns and right.has_columns and left.rows != right.rows:
        raise ShapeError(f"cannot unite batches of {left.rows} and {right.rows} rows.")
    tensors = union_columns("tensor", left.tensors, right.tensors)
    objects = union_columns("object", left.objects, right.objects)
    clash = sorted(set(tensors) & set(objects))
    if clash:
        raise ColumnConflictError(f"columns {clash} are tensors in one batch and objects in the other.")
    without_tensors = left.batch is None and right.batch is None
    rows = left.rows if left.has_columns else right.rows
    return Contents.of(None if without_tensors else tensors, objects, union_meta(left.meta, right.meta), rows)


def concat(parts: Sequence[Contents]) -> Contents:
    """The parts stacked row on row; all must hold the same columns."""
    if not parts:
        raise ShapeError("concat needs at least one batch, got an empty list.")
    tensors = [part.tensors for part in parts]
    objects = [part.objects for part in parts]
    for number in range(1, len(parts)):
        check_names(number, "tensor", tensors[number], tensors[0])
        check_names(number, "object", objects[number], objects[0])
    stacked = {name: stack_rows(name, [columns[name] for columns in tensors]) for name in tensors[0]}
    without_tensors = all(part.batch is None for part in parts)
    return Contents.of(
        None if without_tensors else stacked,
        {name: stack_rows(name, [columns[name] for columns in objects]) for name in objects[0]},
        concat_meta([part.meta for part in parts]),
        sum(part.rows for part in parts),
    )
