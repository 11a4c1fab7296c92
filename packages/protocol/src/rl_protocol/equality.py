"""Equality by value for what a batch may hold: NaN equals NaN, arrays compare by content."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase


def same_storage(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True if both tensors are the same view of the same memory, so that no element need be read."""
    if left is right:
        return True
    if left.is_nested or right.is_nested or left.dtype != right.dtype or left.shape != right.shape:
        return False
    return (
        left.device == right.device
        and left.stride() == right.stride()
        and left.data_ptr() == right.data_ptr()
    )


def tensors_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal dtype, shape and elements; NaN equals NaN at the same place."""
    if same_storage(left, right):
        return True
    if left.is_nested or right.is_nested:
        if not (left.is_nested and right.is_nested) or left.size(0) != right.size(0):
            return False
        return all(tensors_equal(a, b) for a, b in zip(left.unbind(), right.unbind(), strict=True))
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    right = right.to(left.device)
    if torch.equal(left, right):
        return True
    if not (left.is_floating_point() or left.is_complex()):
        return False
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def _arrays_equal(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype == object:
        return all(values_equal(a, b) for a, b in zip(left.flat, right.flat, strict=True))
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))


def _batches_equal(left: TensorDictBase, right: TensorDictBase) -> bool:
    if left.batch_size != right.batch_size or set(left.keys()) != set(right.keys()):
        return False
    return all(values_equal(left.get(key), right.get(key)) for key in left.keys())  # noqa: SIM118


def values_equal(left: Any, right: Any) -> bool:
    """Compare two values of any kind a batch may hold, nested containers included.

    Never raises on a type it does not know: what cannot be compared counts as unequal.
    """
    if left is right:
        return True
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return tensors_equal(left, right)
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return _arrays_equal(left, right)
    if isinstance(left, TensorDictBase) and isinstance(right, TensorDictBase):
        return _batches_equal(left, right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(values_equal(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        if type(left) is not type(right) or len(left) != len(right):
            return False
        return all(values_equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right):
        return True
    try:
        return bool(left == right)
    except (TypeError, ValueError, RuntimeError):
        return False
