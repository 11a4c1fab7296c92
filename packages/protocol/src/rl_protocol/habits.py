"""Names that verl's users write on a batch, each a line over the method that does the work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from rl_protocol.errors import MissingColumnError, ShapeError
from rl_protocol.wire import object_array

T = TypeVar("T")


def shuffle_of(dataloader_kwargs: Mapping[str, Any] | None, shuffle: bool) -> bool:
    """Whether verl's `dataloader_kwargs` ask for shuffled rows; they may hold nothing else."""
    loading = {"shuffle": shuffle, **(dataloader_kwargs or {})}
    found = bool(loading.pop("shuffle"))
    if loading:
        raise TypeError(f"dataloader_kwargs may hold 'shuffle', got also {sorted(loading)}.")
    return found


class VerlHabits:
    """verl's names for what a `DataProto` does."""

    def save_to_disk(self: Any, filepath: str | os.PathLike[str]) -> None:
        """`save`: a folder, not a pickle."""
        self.save(filepath)

    @classmethod
    def load_from_disk(cls: type[T], filepath: str | os.PathLike[str]) -> T:
        """`load`."""
        batch_class: Any = cls
        loaded: T = batch_class.load(filepath)
        return loaded

    def print_size(self: Any, prefix: str = "") -> None:
        """Print the GiB that a pickle of the batch carries."""
        print(f"{prefix}{': ' if prefix else ''}{self!r}, {self.nbytes / 2**30:.6f} GiB")  # noqa: T201 - it is its name

    def get_data_info(self: Any) -> str:
        """One line for each column: name, kind, dtype, shape; and for each `meta_info` key: its type."""
        columns = {**self._contents.tensors, **self.non_tensor_batch}
        lines = [
            f"{k}: {type(v).__name__} {getattr(v, 'dtype', '')} {tuple(v.shape)}" for k, v in columns.items()
        ]
        return "\n".join(
            [*lines, *(f"meta_info[{k!r}]: {type(v).__name__}" for k, v in self.meta_info.items())]
        )

    def padding(self: Any, padding_size: int, padding_candidate: str = "first") -> None:
        """Append `padding_size` copies of the first row (or of the last one) to `self`, in place."""
        if (
            padding_size < 0
            or padding_candidate not in ("", "first", "last")
            or (padding_size and not len(self))
        ):
            raise ShapeError(
                f"padding needs a row to repeat, a count of at least 0 and 'first' or 'last'; got "
                f"{len(self)} rows, {padding_size} and {padding_candidate!r}."
            )
        last = len(self) - 1
        chosen = last if padding_candidate == "last" else 0
        self.reorder([*range(last + 1), *[chosen] * padding_size])

    def unfold_column_chunks(self: T, n_split: int, split_keys: Sequence[str] | None = None) -> T:
        """Each row as `n_split` rows: columns of `split_keys` cut along their second axis, others repeated.

        Raises:
            ShapeError: `n_split` does not divide the second axis of a column that is to be cut.
            MissingColumnError: there is no such column.
        """
        batch: Any = self
        keys, columns = list(split_keys or ()), {**batch._contents.tensors, **batch.non_tensor_batch}
        lacking = [key for key in keys if key not in columns]
        if lacking:
            raise MissingColumnError(f"no columns {lacking} to cut; the batch holds {sorted(columns)}.")
        repeated = batch.repeat(n_split)
        cut = {key: _cut(key, columns[key], n_split) for key in keys}
        tensors = {k: cut.get(k, v) for k, v in repeated._contents.tensors.items()}
        objects = {k: cut.get(k, v) for k, v in repeated.non_tensor_batch.items()}
        unfolded: T = batch._of(repeated._contents.with_columns(tensors, objects, len(repeated)))
        return unfolded


def _cut(name: str, column: Any, n_split: int) -> Any:
    """`[B, L, ...]` as `[B * n_split, L / n_split, ...]`; lists of one length L are a column `[B, L]`."""
    if isinstance(column, np.ndarray) and column.ndim == 1 and all(isinstance(row, list) for row in column):
        lengths = {len(row) for row in column}
        if len(lengths) == 1:
            column = object_array([item for row in column for item in row], (len(column), *lengths))
    if column.ndim < 2 or n_split < 1 or column.shape[1] % n_split:
        raise ShapeError(
            f"column {name!r} of shape {tuple(column.shape)} cannot be cut into {n_split} chunks."
        )
    return column.reshape(len(column) * n_split, column.shape[1] // n_split, *column.shape[2:])
