"""`DataProto`: a batch of rows as tensors, objects and meta information."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_protocol.columns import as_column, check_tensor, rename_map
from rl_protocol.combine import concat_columns, union_columns
from rl_protocol.errors import (
    ColumnConflictError,
    MissingColumnError,
    RowIndexError,
    ShapeError,
)
from rl_protocol.item import DataProtoItem
from rl_protocol.meta import concat_meta, pick_meta, union_meta
from rl_protocol.rows import RowIndex, balanced_sizes, cut_rows, own, row_index, selected_rows, take_rows
from rl_protocol.transfer import count_received, count_sent
from rl_protocol.wire import Encoder, decode_column, encode_columns

if TYPE_CHECKING:
    import os

ObjectArray = np.ndarray[Any, Any]


class DataProto:
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
    ) -> DataProto:
        """A batch from dicts of tensors `[B, ...]` and of object columns of length B."""
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
        cls, data: Mapping[str, Any], meta_info: Mapping[str, Any] | None = None
    ) -> DataProto:
        """A batch from one dict that mixes tensors with arrays and lists."""
        tensors = {k: v for k, v in data.items() if isinstance(v, torch.Tensor | TensorDictBase)}
        others = {k: v for k, v in data.items() if k not in tensors}
        return cls.from_dict(tensors, others, meta_info)

    @classmethod
    def from_tensordict(cls, data: TensorDictBase, meta_info: Mapping[str, Any] | None = None) -> DataProto:
        """A batch from a TensorDict: per-row non-tensor data becomes object columns, the rest `meta_info`."""
        from rl_protocol.tensordicts import from_tensordict

        return from_tensordict(data, meta_info)

    def to_tensordict(self) -> TensorDict:
        """One TensorDict that holds tensors, object columns (stacked per row) and `meta_info` entries."""
        from rl_protocol.tensordicts import to_tensordict

        return to_tensordict(self)

    @classmethod
    def _of(
        cls, tensors: dict[str, Any] | None, objects: dict[str, Any], meta: Mapping[str, Any], rows: int
    ) -> DataProto:
        """Wrap columns that are known to be consistent, without checking again."""
        made = cls.__new__(cls)
        made.batch = None if tensors is None else TensorDict(tensors, batch_size=[rows])
        made.non_tensor_batch = objects
        made.meta_info = dict(meta)
        return made

    # --- looking at it ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        return next((len(column) for column in self.non_tensor_batch.values()), 0)

    def __repr__(self) -> str:
        return (
            f"DataProto(rows={len(self)}, tensors={list(self._tensors())}, "
            f"objects={list(self.non_tensor_batch)}, meta={list(self.meta_info)})"
        )

    @property
    def has_columns(self) -> bool:
        """False for a batch that carries `meta_info` only."""
        return self.batch is not None or bool(self.non_tensor_batch)

    @property
    def nbytes(self) -> int:
        """Bytes that a pickle of this batch carries."""
        encoder = Encoder()
        self._encode(encoder)
        return encoder.nbytes

    def _tensors(self) -> dict[str, Any]:
        return {} if self.batch is None else dict(self.batch.items())

    def check_consistency(self) -> None:
        """Raise `ShapeError` unless every column has as many rows as the batch."""
        if self.batch is not None and len(self.batch.batch_size) < 1:
            raise ShapeError(f"batch_size must be [rows, ...], got {tuple(self.batch.batch_size)}.")
        rows = len(self)
        for name, column in self.non_tensor_batch.items():
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
        tensors = None if self.batch is None else {k: take_rows(v, index) for k, v in self.batch.items()}
        objects = {k: v[index] for k, v in self.non_tensor_batch.items()}
        return self._of(tensors, objects, self.meta_info, selected_rows(index))

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
        tensors = [(name, cut_rows(column, sizes)) for name, column in self._tensors().items()]
        objects = [(name, cut_rows(column, sizes)) for name, column in self.non_tensor_batch.items()]
        return [
            self._of(
                None if self.batch is None else {name: pieces[number] for name, pieces in tensors},
                {name: pieces[number] for name, pieces in objects},
                self.meta_info,
                size,
            )
            for number, size in enumerate(sizes)
        ]

    # --- choosing columns -------------------------------------------------------------------------------

    def _require(self, tensors: Iterable[str], objects: Iterable[str]) -> None:
        lacking = [k for k in tensors if k not in self._tensors()]
        lacking_objects = [k for k in objects if k not in self.non_tensor_batch]
        if lacking or lacking_objects:
            raise MissingColumnError(
                f"no tensor columns {lacking} and no object columns {lacking_objects}; it holds tensors "
                f"{sorted(self._tensors())} and objects {sorted(self.non_tensor_batch)}."
            )

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
        deepcopy: bool = False,
    ) -> DataProto:
        """The named columns and meta keys; None means all of that kind. `deepcopy` copies the memory too."""
        tensors, objects = self._tensors(), self.non_tensor_batch
        names = list(tensors) if batch_keys is None else list(batch_keys)
        object_names = list(objects) if non_tensor_batch_keys is None else list(non_tensor_batch_keys)
        self._require(names, object_names)
        chosen = self._of(
            None if self.batch is None else {k: tensors[k] for k in names},
            {k: objects[k] for k in object_names},
            pick_meta(self.meta_info, meta_info_keys),
            len(self),
        )
        return chosen.clone() if deepcopy else chosen

    def pop(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
    ) -> DataProto:
        """Remove the named columns and meta keys from `self` and return them; None means none."""
        names, object_names = list(batch_keys or ()), list(non_tensor_batch_keys or ())
        meta = pick_meta(self.meta_info, meta_info_keys or ())
        self._require(names, object_names)
        tensors, objects, rows = self._tensors(), self.non_tensor_batch, len(self)
        taken = self._of(
            {k: tensors[k] for k in names} if names else None,
            {k: objects[k] for k in object_names},
            meta,
            rows,
        )
        if self.batch is not None:
            self.batch = TensorDict(
                {k: v for k, v in tensors.items() if k not in names}, batch_size=self.batch.batch_size
            )
        self.non_tensor_batch = {k: v for k, v in objects.items() if k not in object_names}
        self.meta_info = {k: v for k, v in self.meta_info.items() if k not in meta}
        return taken

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> DataProto:
        """Rename columns, tensors or objects; all at once, so names may be swapped."""
        mapping = rename_map(old_keys, new_keys, [*self._tensors(), *self.non_tensor_batch])
        tensors = {mapping.get(k, k): v for k, v in self._tensors().items()}
        objects = {mapping.get(k, k): v for k, v in self.non_tensor_batch.items()}
        return self._of(None if self.batch is None else tensors, objects, self.meta_info, len(self))

    def union(self, other: DataProto) -> DataProto:
        """The columns of both. A column that both hold must be equal by value (NaN equals NaN).

        Raises:
            ShapeError: the row counts differ.
            ColumnConflictError, MetaConflictError: both hold different values under one name.
        """
        if self.has_columns and other.has_columns and len(self) != len(other):
            raise ShapeError(f"cannot unite batches of {len(self)} and {len(other)} rows.")
        tensors = union_columns("tensor", self._tensors(), other._tensors())
        objects = union_columns("object", self.non_tensor_batch, other.non_tensor_batch)
        clash = sorted(set(tensors) & set(objects))
        if clash:
            raise ColumnConflictError(f"columns {clash} are tensors in one batch and objects in the other.")
        rows = len(self) if self.has_columns else len(other)
        without_tensors = self.batch is None and other.batch is None
        return self._of(
            None if without_tensors else tensors, objects, union_meta(self.meta_info, other.meta_info), rows
        )

    @staticmethod
    def concat(data: Sequence[DataProto]) -> DataProto:
        """Stack batches row on row. All must hold the same columns; `meta_info` merges by declared rules.

        Raises:
            ShapeError: nothing to concatenate, or dtypes or trailing shapes differ.
            MissingColumnError: a part lacks a column that another has.
            MetaConflictError: unequal `meta_info` values (other than `metrics` and `timing`).
        """
        parts = list(data)
        if not parts:
            raise ShapeError("concat needs at least one batch, got an empty list.")
        tensors, objects = concat_columns([(p._tensors(), p.non_tensor_batch) for p in parts])
        without_tensors = all(p.batch is None for p in parts)
        meta = concat_meta([p.meta_info for p in parts])
        return DataProto._of(None if without_tensors else tensors, objects, meta, sum(len(p) for p in parts))

    # --- moving and keeping -----------------------------------------------------------------------------

    def to(self, device: torch.device | str) -> DataProto:
        """The batch with its tensors on `device`; nothing is copied if they are there already."""
        if self.batch is None:
            return self.clone_shallow()
        moved = {k: v.to(device) for k, v in self.batch.items()}
        return self._of(moved, dict(self.non_tensor_batch), self.meta_info, len(self))

    def clone_shallow(self) -> DataProto:
        """A new object with its own dicts that shares every tensor and array."""
        return self.select()

    def clone(self) -> DataProto:
        """A copy with its own storage: in-place work on it is seen by nobody else."""
        tensors = None if self.batch is None else {k: own(v) for k, v in self.batch.items()}
        objects = {k: own(v) for k, v in self.non_tensor_batch.items()}
        return self._of(tensors, objects, own(self.meta_info), len(self))

    def _private(self, copied: bool) -> DataProto:
        """A batch that owns its memory; `copied` says that its tensors and plain arrays do already."""
        if not copied:
            return self.clone()
        objects = {k: own(v) if v.dtype == object else v for k, v in self.non_tensor_batch.items()}
        return self._of(
            None if self.batch is None else self._tensors(), objects, own(self.meta_info), len(self)
        )

    def make_iterator(
        self, mini_batch_size: int, epochs: int = 1, seed: int | None = None, shuffle: bool = True
    ) -> Iterator[DataProto]:
        """Mini-batches over `epochs` passes; each pass is a new permutation drawn from `seed`.

        With `shuffle=False` the order is kept. The last mini-batch of a pass may be smaller: no row is lost.
        """
        if mini_batch_size < 1 or epochs < 0:
            raise ShapeError(
                f"mini_batch_size must be >= 1 and epochs >= 0, got {mini_batch_size} and {epochs}."
            )
        return self._mini_batches(mini_batch_size, epochs, np.random.default_rng(seed) if shuffle else None)

    def _mini_batches(self, size: int, epochs: int, rng: np.random.Generator | None) -> Iterator[DataProto]:
        for _ in range(epochs):
            order = np.arange(len(self)) if rng is None else rng.permutation(len(self))
            for start in range(0, len(self), size):
                yield self._take(
                    slice(start, min(start + size, len(self)), 1)
                    if rng is None
                    else order[start : start + size]
                )

    def fold_batch_dim(self, new_batch_size: int) -> DataProto:
        """Rows `[B, ...]` to `[new_batch_size, B / new_batch_size, ...]`: consecutive rows become one."""
        from rl_protocol.folding import fold

        return fold(self, new_batch_size)

    def unfold_batch_dim(self, batch_dims: int = 2) -> DataProto:
        """The inverse of `fold_batch_dim`: the first `batch_dims` axes become the row axis."""
        from rl_protocol.folding import unfold

        return unfold(self, batch_dims)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder of safetensors and JSON; it appears whole or not at all."""
        from rl_protocol.storage import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DataProto:
        """Read what `save` wrote. Nothing is ever unpickled."""
        from rl_protocol.storage import load

        return load(path)

    def _encode(self, encoder: Encoder) -> tuple[Any, ...]:
        tensors = None if self.batch is None else encode_columns(self._tensors(), encoder)
        objects = {k: encoder.array(v) for k, v in self.non_tensor_batch.items()}
        shape = () if self.batch is None else tuple(self.batch.batch_size)
        return (tensors, shape, objects, encoder.value(self.meta_info))

    def __reduce__(self) -> Any:
        encoder = Encoder()
        payload = self._encode(encoder)
        count_sent(encoder.nbytes)
        return (_rebuild, (*payload, encoder.nbytes))


def _rebuild(
    tensors: Any, shape: tuple[int, ...], objects: dict[str, Any], meta: dict[str, Any], nbytes: int
) -> DataProto:
    count_received(nbytes)
    columns = None if tensors is None else {k: decode_column(v) for k, v in tensors.items()}
    made = DataProto._of(None, objects, meta, 0)
    made.batch = None if columns is None else TensorDict(columns, batch_size=list(shape))
    return made
