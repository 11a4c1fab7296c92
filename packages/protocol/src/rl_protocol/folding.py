"""Rows grouped into rows, and back."""

from __future__ import annotations

import math

from rl_protocol.data_proto import DataProto
from rl_protocol.errors import ShapeError


def _reshaped(data: DataProto, rows: tuple[int, ...], axes: int) -> DataProto:
    """The batch with the first `axes` axes of every column reshaped to `rows`."""
    tensors = {k: v.reshape(*rows, *v.shape[axes:]) for k, v in data._tensors().items()}
    objects = {k: v.reshape(*rows, *v.shape[axes:]) for k, v in data.non_tensor_batch.items()}
    return DataProto._of(None if data.batch is None else tensors, objects, data.meta_info, rows[0])


def fold(data: DataProto, new_batch_size: int) -> DataProto:
    """Rows `[B, ...]` to `[new_batch_size, B / new_batch_size, ...]`."""
    if new_batch_size < 1 or len(data) % new_batch_size:
        raise ShapeError(f"cannot fold {len(data)} rows into {new_batch_size}: it must divide them.")
    return _reshaped(data, (new_batch_size, len(data) // new_batch_size), 1)


def unfold(data: DataProto, batch_dims: int) -> DataProto:
    """The first `batch_dims` axes of every column become the row axis."""
    columns = {**data._tensors(), **data.non_tensor_batch}
    thin = [name for name, column in columns.items() if column.ndim < batch_dims]
    if batch_dims < 1 or thin:
        raise ShapeError(f"cannot unfold {batch_dims} axes: columns {thin} have fewer.")
    shape = next(iter(columns.values())).shape[:batch_dims] if columns else (0,)
    return _reshaped(data, (math.prod(shape),), batch_dims)
