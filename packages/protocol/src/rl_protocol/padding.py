"""Padding a batch to a multiple, for callers that need one; nothing in this family of packages does."""

from __future__ import annotations

import numpy as np

from rl_protocol.data_proto import DataProto
from rl_protocol.errors import ShapeError


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """Repeat rows from the start, in order, until `size_divisor` divides their number.

    Returns:
        The padded batch (a new object; the given one keeps its rows) and the number of rows added.

    Raises:
        ShapeError: `size_divisor` is below 1, or the batch has no row to repeat.
    """
    if size_divisor < 1:
        raise ShapeError(f"size_divisor must be at least 1, got {size_divisor}.")
    rows = len(data)
    if rows == 0 and data.has_columns:
        raise ShapeError("a batch of zero rows cannot be padded: there is no row to repeat.")
    pad_size = -rows % size_divisor
    if pad_size == 0:
        return data.clone_shallow(), 0
    return data.select_idxs(np.arange(rows + pad_size) % rows), pad_size


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """Drop the last `pad_size` rows, the inverse of `pad_dataproto_to_divisor`."""
    if not 0 <= pad_size <= len(data):
        raise ShapeError(f"cannot remove {pad_size} rows of padding from a batch of {len(data)} rows.")
    return data.slice(0, len(data) - pad_size)
