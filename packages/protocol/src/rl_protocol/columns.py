"""Checks of columns and their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_protocol.errors import ColumnConflictError, ColumnTypeError, MissingColumnError, ShapeError
from rl_protocol.wire import object_array


def as_column(name: str, values: Any) -> np.ndarray[Any, Any]:
    """A non-tensor column `[B, ...]`: lists become 1-D object arrays, numpy arrays are kept."""
    if isinstance(values, np.ndarray):
        if values.ndim < 1:
            raise ShapeError(f"object column {name!r} is a scalar; it needs one entry per row.")
        return values
    if isinstance(values, list | tuple):
        return object_array(list(values))
    raise ColumnTypeError(
        f"object column {name!r} is a {type(values).__name__}; give a numpy array or a list."
    )


def check_tensor(name: str, tensor: Any) -> None:
    """Raise unless the value is a tensor column with a row axis."""
    if not isinstance(tensor, torch.Tensor | TensorDictBase):
        raise ColumnTypeError(
            f"column {name!r} is a {type(tensor).__name__}, not a tensor: put it among the non_tensors."
        )
    if tensor.ndim < 1:
        raise ShapeError(f"tensor column {name!r} is a scalar; it needs a row axis.")


def rename_map(
    old_keys: str | Sequence[str], new_keys: str | Sequence[str], present: Sequence[str]
) -> dict[str, str]:
    """Check a renaming against the columns that are there and return it as old -> new."""
    old = [old_keys] if isinstance(old_keys, str) else list(old_keys)
    new = [new_keys] if isinstance(new_keys, str) else list(new_keys)
    if len(old) != len(new) or len(set(old)) != len(old):
        raise ColumnConflictError(
            f"rename needs one new name for each distinct old one, got {old} and {new}."
        )
    missing = [key for key in old if key not in present]
    if missing:
        raise MissingColumnError(f"no columns {missing} to rename; the batch holds {sorted(present)}.")
    mapping = dict(zip(old, new, strict=True))
    result = [mapping.get(key, key) for key in present]
    twice = sorted({key for key in result if result.count(key) > 1})
    if twice:
        raise ColumnConflictError(f"renaming {old} to {new} would give two columns the name {twice}.")
    return mapping
