"""Row operations on one column: take, stack, own. A column is a tensor (dense or jagged), a nested
TensorDict, or a numpy array; the first axis is the row."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_protocol.errors import RowIndexError, ShapeError

ObjectArray: TypeAlias = np.ndarray[Any, Any]
TensorColumn: TypeAlias = torch.Tensor | TensorDictBase
RowIndex: TypeAlias = slice | np.ndarray[Any, np.dtype[np.int64]]


def balanced_sizes(total: int, parts: int) -> list[int]:
    """Cut `total` rows into exactly `parts` sizes that differ by at most one, larger ones first."""
    if parts < 1:
        raise ShapeError(f"cannot cut a batch into {parts} parts: the number of parts must be at least 1.")
    base, extra = divmod(total, parts)
    return [base + 1] * extra + [base] * (parts - extra)


def row_index(index: Any, rows: int) -> RowIndex:
    """Normalise a slice, list, array, tensor or boolean mask to a forward slice or int64 indices `[k]`."""
    if isinstance(index, slice):
        start, stop, step = index.indices(rows)
        if step > 0:
            return slice(start, max(start, stop), step)
        return np.arange(start, stop, step, dtype=np.int64)
    array = index.detach().cpu().numpy() if isinstance(index, torch.Tensor) else np.asarray(index)
    if array.size == 0 and array.dtype != bool:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "biu":
        raise ShapeError(
            f"rows are chosen by a slice, or by a 1-D list, array or tensor of ints or bools; got shape "
            f"{array.shape} of {array.dtype}."
        )
    if array.dtype == bool:
        if len(array) != rows:
            raise ShapeError(f"a boolean mask of length {len(array)} cannot choose from {rows} rows.")
        return np.flatnonzero(array)
    array = array.astype(np.int64, copy=False)
    if array.size and (array.min() < -rows or array.max() >= rows):
        raise RowIndexError(
            f"row {array.max() if array.max() >= rows else array.min()} of a batch of {rows} rows."
        )
    return np.where(array < 0, array + rows, array)


def selected_rows(index: RowIndex) -> int:
    """How many rows a normalised index chooses."""
    if isinstance(index, slice):
        return len(range(index.start, index.stop, index.step))
    return len(index)


def _jagged(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=values.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def jagged_parts(column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense values `[sum(lengths), ...]` and lengths `[B]` of a jagged tensor, without holes."""
    if column.size(0) == 0:
        return column.values()[:0], torch.zeros(0, dtype=torch.int64, device=column.device)
    lengths = column.offsets().diff()  # type: ignore[attr-defined]
    if column.lengths() is None:  # type: ignore[attr-defined]
        return column.values(), lengths
    pieces = column.unbind()
    return torch.cat(pieces), torch.tensor([len(p) for p in pieces], device=column.device)


def jagged_from_parts(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The inverse of `jagged_parts`."""
    return _jagged(values, lengths.to(torch.int64))


def _take_jagged(column: torch.Tensor, index: RowIndex) -> torch.Tensor:
    values, lengths = jagged_parts(column)
    ends = torch.cumsum(lengths, 0)
    if isinstance(index, slice) and index.step == 1:
        first = int(ends[index.start - 1]) if index.start else 0
        last = int(ends[index.stop - 1]) if index.stop > index.start else first
        return _jagged(values[first:last], lengths[index.start : index.stop])
    chosen = torch.as_tensor(np.arange(len(lengths))[index], device=values.device)
    sizes = lengths[chosen]
    if sizes.numel() == 0:
        return _jagged(values[:0], sizes)
    # position inside the output, minus where its row starts there, plus where its row starts in the input
    shift = torch.repeat_interleave((ends - lengths)[chosen] - (torch.cumsum(sizes, 0) - sizes), sizes)
    return _jagged(values[torch.arange(len(shift), device=values.device) + shift], sizes)


def take_rows(column: Any, index: RowIndex) -> Any:
    """Rows of a column. A slice gives a view (a jagged tensor: of its values); indices give a copy."""
    if isinstance(column, np.ndarray):
        return column[index]
    if isinstance(column, TensorDictBase):
        return column[index if isinstance(index, slice) else torch.from_numpy(index)]
    if column.is_nested:
        return _take_jagged(column, index)
    if isinstance(index, slice):
        return column[index]
    return column.index_select(0, torch.as_tensor(index, device=column.device))


def cut_rows(column: Any, sizes: Sequence[int]) -> Sequence[Any]:
    """Consecutive pieces of a column, as views."""
    if isinstance(column, torch.Tensor) and not column.is_nested:
        return column.split(list(sizes))  # type: ignore[no-untyped-call, no-any-return]
    starts = [0, *accumulate(sizes)]
    return [
        take_rows(column, slice(start, start + size, 1)) for start, size in zip(starts, sizes, strict=False)
    ]


def _check_stackable(name: str, columns: Sequence[Any]) -> None:
    first = columns[0]
    for number, column in enumerate(columns[1:], 1):
        kinds_differ = isinstance(column, TensorDictBase) != isinstance(first, TensorDictBase)
        if kinds_differ or getattr(column, "is_nested", False) != getattr(first, "is_nested", False):
            raise ShapeError(f"column {name!r}: part {number} is {type(column).__name__}, part 0 is not.")
        if isinstance(first, TensorDictBase):
            continue
        if column.dtype != first.dtype and np.dtype(object) not in (column.dtype, first.dtype):
            raise ShapeError(f"column {name!r}: part 0 is {first.dtype}, part {number} is {column.dtype}.")
        if not getattr(first, "is_nested", False) and column.shape[1:] != first.shape[1:]:
            raise ShapeError(
                f"column {name!r}: part 0 has shape {tuple(first.shape)}, part {number} "
                f"{tuple(column.shape)}: all axes but the first must agree."
            )


def stack_rows(name: str, columns: Sequence[Any]) -> Any:
    """Stack parts of one column along the row axis; dtypes and trailing shapes must agree."""
    if isinstance(columns[0], np.ndarray) and columns[0].dtype.kind in "US":
        return np.concatenate(columns)
    _check_stackable(name, columns)
    if len(columns) == 1:
        return columns[0]
    if isinstance(columns[0], np.ndarray):
        return np.concatenate(columns)
    if isinstance(columns[0], TensorDictBase):
        rows = sum(int(column.batch_size[0]) for column in columns)
        keys = list(columns[0].keys())
        if any(set(column.keys()) != set(keys) for column in columns):
            raise ShapeError(f"nested column {name!r}: the parts hold different keys.")
        return TensorDict(
            {key: stack_rows(f"{name}.{key}", [c.get(key) for c in columns]) for key in keys},
            batch_size=[rows],
        )
    if columns[0].is_nested:
        parts = [jagged_parts(column) for column in columns]
        return _jagged(torch.cat([v for v, _ in parts]), torch.cat([n for _, n in parts]))
    return torch.cat(list(columns))


def own(value: Any) -> Any:
    """A copy of a column or nested value that shares no memory with the original.

    Tensors and arrays are copied, containers rebuilt; immutable and foreign objects are kept.
    """
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, TensorDictBase):
        return TensorDict({k: own(v) for k, v in value.items()}, batch_size=value.batch_size)
    if isinstance(value, np.ndarray):
        if value.dtype != object:
            return value.copy()
        copied = np.empty(value.shape, dtype=object)
        for position, item in enumerate(value.flat):
            copied.flat[position] = own(item)
        return copied
    if type(value) is dict:
        return {key: own(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return cast(Any, type(value))(own(item) for item in value)
    if type(value) in (OrderedDict, defaultdict):
        copied_dict = value.copy()
        copied_dict.update((key, own(item)) for key, item in value.items())
        return copied_dict
    if type(value) is deque:
        return deque(map(own, value), value.maxlen)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return cast(Any, type(value))(*map(own, value))
    return value.copy() if type(value) is set else value
