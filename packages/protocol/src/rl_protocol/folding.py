"""Rows grouped into rows, and back."""

from __future__ import annotations

import math

from rl_protocol.contents import Contents
from rl_protocol.errors import ShapeError


def _reshaped(contents: Contents, rows: tuple[int, ...], axes: int) -> Contents:
    """The first `axes` axes of every column reshaped to `rows`."""
    return contents.each(lambda column: column.reshape(*rows, *column.shape[axes:]), rows[0])


def fold(contents: Contents, new_batch_size: int) -> Contents:
    """Rows `[B, ...]` to `[new_batch_size, B / new_batch_size, ...]`."""
    rows = contents.rows
    if new_batch_size < 1 or rows % new_batch_size:
        raise ShapeError(f"cannot fold {rows} rows into {new_batch_size}: it must divide them.")
    return _reshaped(contents, (new_batch_size, rows // new_batch_size), 1)


def unfold(contents: Contents, batch_dims: int) -> Contents:
    """The first `batch_dims` axes of every column become the row axis."""
    columns = {**contents.tensors, **contents.objects}
    thin = [name for name, column in columns.items() if column.ndim < batch_dims]
    if batch_dims < 1 or thin:
        raise ShapeError(f"cannot unfold {batch_dims} axes: columns {thin} have fewer.")
    shape = next(iter(columns.values())).shape[:batch_dims] if columns else (0,)
    return _reshaped(contents, (math.prod(shape),), batch_dims)
