"""`DataProto`: a batch of rows as tensors, objects and meta information."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_protocol import choosing, combine, cutting, folding, storage, tensordicts
from rl_protocol.columns import as_column, check_tensor, rename_map
from rl_protocol.contents import Contents
from rl_protocol.errors import ColumnConflictError, RowIndexError, ShapeError
from rl_protocol.habits import VerlHabits, shuffle_of
from rl_protocol.item import DataProtoItem
from rl_protocol.rows import ObjectArray, RowIndex, balanced_sizes, own, row_index
from rl_protocol.transfer import count_received, count_sent
from rl_protocol.wire import Encoder, decode, encode


class DataProto(VerlHabits):
    """Rows with tensor columns (`batch`), object columns (`non_tensor_batch`) and `meta_info`.

    `pop` and `reorder` change `self`; every other method returns a new object that shares storage. No method
    changes the caller's dicts or arrays, and a failed call changes nothing. A batch without tensors, without
    rows or without columns is a batch.
    """

    batch: TensorDict | None
    non_tensor_batch: dict[str, ObjectArray]
    meta_info: dict[str, Any]

    def __init__(
        self,
        batch: TensorDictBase | None = None,
        non_tensor_batch: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap columns that have the same number of rows.

        Args:
            batch: TensorDict with `batch_size` `[B]`; the TensorDict is copied, its tensors are shared.
            non_tensor_batch: columns of length B. Lists become 1-D object arrays, numpy arrays are kept.
            meta_info: what belongs to the batch as a whole.

        Raises:
            ShapeError: a column has another number of rows.
        """
        self.batch = None if batch is None else TensorDict(dict(batch.items()), batch_size=batch.batch_size)
        self.non_tensor_batch = {k: as_column(k, v) for k, v in (non_tensor_batch or {}).items()}
        self.meta_info = dict(meta_info or {})
        self.check_consistency()

    # --- making a batch ---------------------------------------------------------------------------------

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, Any] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> DataProto:
        """A batch from dicts of tensors `[B, ...]` and of object columns of length B.

        Two habits of verl: `num_batch_dims` can only be 1, and no call needs the rows of `auto_padding`.
        """
        if num_batch_dims != 1:
            raise ShapeError(f"num_batch_dims must be 1, got {num_batch_dims}: fold_batch_dim groups rows.")
        if not tensors:
            return cls(None, non_tensors, meta_info)
        for name, tensor in tensors.items():
            check_tensor(name, tensor)
        rows = {name: int(tensor.shape[0]) for name, tensor in tensors.items()}
        if len(set(rows.values())) > 1:
            raise ShapeError(f"tensor columns must have the same number of rows, got {rows}.")
        return cls(TensorDict(dict(tensors), batch_size=[next(iter(rows.values()))]), non_tensors, meta_info)

    @classmethod
    def from_single_dict(
        cls, data: Mapping[str, Any], meta_info: Mapping[str, Any] | None = None, auto_padding: bool = False
    ) -> DataProto:
        """A batch from one dict that mixes tensors with arrays and lists. See `from_dict`."""
        tensors = {k: v for k, v in data.items() if isinstance(v, torch.Tensor | TensorDictBase)}
        others = {k: v for k, v in data.items() if k not in tensors}
        return cls.from_dict(tensors, others, meta_info)

    @classmethod
    def from_tensordict(cls, data: TensorDictBase, meta_info: Mapping[str, Any] | None = None) -> DataProto:
        """A batch from a TensorDict: per-row non-tensor data becomes object columns, the rest `meta_info`."""
        return cls(*tensordicts.from_tensordict(data, meta_info))

    def to_tensordict(self) -> TensorDict:
        """One TensorDict that holds tensors, object columns (stacked per row) and `meta_info` entries."""
        return tensordicts.to_tensordict(self._contents)

    @classmethod
    def _of(cls, contents: Contents) -> DataProto:
        """Wrap columns that are known to be consistent, without checking again."""
        made = cls.__new__(cls)
        made.batch, made.non_tensor_batch, made.meta_info = contents
        return made

    @property
    def _contents(self) -> Contents:
        return Contents(self.batch, self.non_tensor_batch, self.meta_info)

    # --- looking at it ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._contents.rows

    def __repr__(self) -> str:
        return (
            f"DataProto(rows={len(self)}, tensors={list(self._contents.tensors)}, "
            f"objects={list(self.non_tensor_batch)}, meta={list(self.meta_info)})"
        )

    @property
    def has_columns(self) -> bool:
        """False for a batch that carries `meta_info` only."""
        return self._contents.has_columns

    @property
    def nbytes(self) -> int:
        """Bytes that a pickle of this batch carries."""
        encoder = Encoder()
        encode(self._contents, encoder)
        return encoder.nbytes

    def check_consistency(self) -> None:
        """Raise `ShapeError` or `ColumnConflictError` unless every column has its name and B rows."""
        if self.batch is not None and len(self.batch.batch_size) < 1:
            raise ShapeError(f"batch_size must be [rows, ...], got {tuple(self.batch.batch_size)}.")
        rows = len(self)
        tensors = () if self.batch is None else self.batch.keys()
        for name, column in self.non_tensor_batch.items():
            if name in tensors:
                raise ColumnConflictError(f"column {name!r} is a tensor and an object column; rename one.")
            if len(column) != rows:
                raise ShapeError(f"column {name!r} has {len(column)} rows, the batch has {rows}.")

    @overload
    def __getitem__(self, index: int) -> DataProtoItem: ...
    @overload
    def __getitem__(
        self, index: slice | Sequence[int] | Sequence[bool] | ObjectArray | torch.Tensor
    ) -> DataProto: ...
    def __getitem__(self, index: Any) -> DataProto | DataProtoItem:
        """An int gives a `DataProtoItem`; a slice a view; a list, array, tensor or bool mask a copy."""
        if isinstance(index, int | np.integer) and not isinstance(index, bool | np.bool_):
            rows = len(self)
            if not -rows <= index < rows:
                raise RowIndexError(f"row {index} of a batch of {rows} rows.")
            row = None if self.batch is None else self.batch[int(index)]
            return DataProtoItem(
                row, {k: v[index] for k, v in self.non_tensor_batch.items()}, dict(self.meta_info)
            )
        return self._take(row_index(index, len(self)))

    def __iter__(self) -> Iterator[DataProtoItem]:
        return (self[row] for row in range(len(self)))

    def _take(self, index: RowIndex) -> DataProto:
        return self._of(cutting.take(self._contents, index))

    # --- choosing rows ----------------------------------------------------------------------------------

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> DataProto:
        """Rows `start:end:step` as views."""
        return self[slice(start, end, step)]

    def select_idxs(self, idxs: Any) -> DataProto:
        """Rows by a list, array or tensor of ints or bools."""
        return self._take(row_index(idxs, len(self)))

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> DataProto:
        """Every row `repeat_times` times: row by row (`a a b b`), or batch by batch (`a b a b`)."""
        if repeat_times < 0:
            raise ShapeError(f"repeat_times must not be negative, got {repeat_times}.")
        rows = np.arange(len(self))
        return self._take(np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times))

    def sample_level_repeat(self, repeat_times: Sequence[int] | torch.Tensor | ObjectArray) -> DataProto:
        """Row i `repeat_times[i]` times, in order."""
        times = np.asarray(repeat_times)
        if times.shape != (len(self),) or (times < 0).any():
            raise ShapeError(
                f"repeat_times must hold {len(self)} counts >= 0, one per row; got {times.tolist()}."
            )
        return self._take(np.repeat(np.arange(len(self)), times))

    def reorder(self, indices: Any) -> None:
        """Put the rows of `self` into the order of `indices`, a permutation or any choice, in place."""
        moved = self._take(row_index(indices, len(self)))
        self.batch, self.non_tensor_batch = moved.batch, moved.non_tensor_batch

    def chunk(self, chunks: int) -> list[DataProto]:
        """Exactly `chunks` consecutive pieces whose sizes differ by at most one; a piece may be empty."""
        return self._cut(balanced_sizes(len(self), chunks))

    def split(self, split_size: int) -> list[DataProto]:
        """Consecutive pieces of `split_size` rows; the last may be smaller."""
        if split_size < 1:
            raise ShapeError(f"split_size must be at least 1, got {split_size}.")
        return [self.slice(start, start + split_size) for start in range(0, len(self), split_size)]

    def _cut(self, sizes: Sequence[int]) -> list[DataProto]:
        return [self._of(piece) for piece in cutting.cut(self._contents, sizes)]

    # --- choosing columns -------------------------------------------------------------------------------

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
        deepcopy: bool = False,
    ) -> DataProto:
        """The named columns and meta keys; None means all of that kind. `deepcopy` copies the memory too."""
        chosen = self._of(choosing.select(self._contents, batch_keys, non_tensor_batch_keys, meta_info_keys))
        return chosen.clone() if deepcopy else chosen

    def pop(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
    ) -> DataProto:
        """Remove the named columns and meta keys from `self` and return them; None means none."""
        taken, rest = choosing.split_off(
            self._contents, list(batch_keys or ()), list(non_tensor_batch_keys or ()), meta_info_keys or ()
        )
        self.batch, self.non_tensor_batch, self.meta_info = rest
        return self._of(taken)

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> DataProto:
        """Rename columns, tensors or objects; all at once, so names may be swapped."""
        contents = self._contents
        mapping = rename_map(old_keys, new_keys, [*contents.tensors, *contents.objects])
        return self._of(choosing.rename(contents, mapping))

    def union(self, other: DataProto) -> DataProto:
        """The columns of both. A column that both hold must be equal by value (NaN equals NaN).

        Raises:
            ShapeError: the row counts differ.
            ColumnConflictError, MetaConflictError: both hold different values under one name.
        """
        return self._of(combine.union(self._contents, other._contents))

    @staticmethod
    def concat(data: Sequence[DataProto]) -> DataProto:
        """Stack batches row on row. All must hold the same columns; `meta_info` merges by declared rules.

        Raises:
            ShapeError: nothing to concatenate, or dtypes or trailing shapes differ.
            MissingColumnError: a part lacks a column that another has.
            MetaConflictError: unequal `meta_info` values (other than `metrics` and `timing`).
        """
        return DataProto._of(combine.concat([part._contents for part in data]))

    # --- moving and keeping -----------------------------------------------------------------------------

    def to(self, device: torch.device | str) -> DataProto:
        """The batch with its tensors on `device`; nothing is copied if they are there already."""
        if self.batch is None:
            return self.clone_shallow()
        moved = {k: v.to(device) for k, v in self.batch.items()}
        return self._of(Contents.of(moved, dict(self.non_tensor_batch), self.meta_info, len(self)))

    def clone_shallow(self) -> DataProto:
        """A new object with its own dicts that shares every tensor and array."""
        return self.select()

    def clone(self) -> DataProto:
        """A copy with its own storage: in-place work on it is seen by nobody else."""
        contents = self._contents._replace(meta=own(self.meta_info))
        return self._of(contents.each(own, len(self)))

    def _private(self, copied: bool) -> DataProto:
        """Copy what is still shared; `copied`: tensors and numeric arrays are private already."""
        if not copied:
            return self.clone()
        contents = self._contents._replace(meta=own(self.meta_info))
        objects = {k: own(v) if v.dtype == object else v for k, v in contents.objects.items()}
        return self._of(contents.with_columns(contents.tensors, objects, len(self)))

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int = 1,
        seed: int | None = None,
        shuffle: bool = True,
        dataloader_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[DataProto]:
        """Mini-batches over `epochs` passes; each pass is a new permutation drawn from `seed`.

        `dataloader_kwargs` is verl's habit; it may hold `shuffle`, and nothing else.
        With `shuffle=False` the order is kept. The last mini-batch of a pass may be smaller: no row is lost.
        """
        shuffle = shuffle_of(dataloader_kwargs, shuffle)
        if mini_batch_size < 1 or epochs < 0:
            raise ShapeError(
                f"mini_batch_size must be >= 1 and epochs >= 0, got {mini_batch_size} and {epochs}."
            )
        random = np.random.default_rng(seed) if shuffle else None
        return map(self._take, cutting.mini_batches(len(self), mini_batch_size, epochs, random))

    def fold_batch_dim(self, new_batch_size: int) -> DataProto:
        """Rows `[B, ...]` to `[new_batch_size, B / new_batch_size, ...]`: consecutive rows become one."""
        return self._of(folding.fold(self._contents, new_batch_size))

    def unfold_batch_dim(self, batch_dims: int = 2) -> DataProto:
        """The inverse of `fold_batch_dim`: the first `batch_dims` axes become the row axis."""
        return self._of(folding.unfold(self._contents, batch_dims))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder of safetensors and JSON; it appears whole or not at all."""
        storage.save(self._contents, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DataProto:
        """Read what `save` wrote. Nothing is ever unpickled.

        Raises:
            FormatError: the folder is not a saved batch, is damaged, or is of another major version.
        """
        return storage.load(path, lambda contents: cls(*contents))

    def __reduce__(self) -> Any:
        encoder = Encoder()
        payload = encode(self._contents, encoder)
        count_sent(encoder.nbytes)
        return (_rebuild, (*payload, encoder.nbytes))


def _rebuild(
    tensors: dict[str, Any] | None,
    shape: tuple[int, ...],
    objects: dict[str, Any],
    meta: dict[str, Any],
    nbytes: int,
) -> DataProto:
    count_received(nbytes)
    return DataProto._of(decode(tensors, shape, objects, meta))
