"""The pieces of a future: which rows of which source make up a batch, without the rows.

A `ColumnGroup` is a set of columns that come from the same sources: row i of the group is row `row[i]` of
view `which[i]`. Editing a future edits these two index arrays and the names. A `Recipe` is one
consumer's share of it in the shortest form (slices where rows are consecutive); it travels to the consumer
beside the references and builds the batch there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rl_protocol.contents import Contents
from rl_protocol.data_proto import DataProto
from rl_protocol.rows import RowIndex, own, stack_rows, take_rows
from rl_protocol.stores import Store

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Source:
    """A reference to a batch that a worker made, the store that can read it, and what is known of it here."""

    ref: Any
    store: Store
    numbers: DataProto | None = None


@dataclass(frozen=True, eq=False)
class View:
    """A source, and the names that its columns had there where they differ from the names here."""

    source: Source
    renamed: dict[str, str]

    def origin(self, name: str) -> str:
        """The name at the source of the column that is called `name` here."""
        return self.renamed.get(name, name)


@dataclass(frozen=True, eq=False)
class ColumnGroup:
    """Columns whose rows come from the same places."""

    tensors: tuple[str, ...]
    objects: tuple[str, ...]
    views: tuple[View, ...]
    which: IntArray
    row: IntArray

    def take(self, index: RowIndex) -> ColumnGroup:
        """The group with its rows chosen by `index`."""
        return replace(self, which=self.which[index], row=self.row[index])

    def keep(self, tensors: set[str], objects: set[str]) -> ColumnGroup:
        """The group with only the named columns."""
        return replace(
            self,
            tensors=tuple(name for name in self.tensors if name in tensors),
            objects=tuple(name for name in self.objects if name in objects),
        )

    def rename(self, mapping: dict[str, str]) -> ColumnGroup:
        """The group with its columns renamed, old -> new."""
        names = [*self.tensors, *self.objects]
        views = tuple(
            View(
                view.source,
                {mapping.get(n, n): view.origin(n) for n in names if view.origin(n) != mapping.get(n, n)},
            )
            for view in self.views
        )
        tensors = tuple(mapping.get(n, n) for n in self.tensors)
        return replace(
            self, tensors=tensors, objects=tuple(mapping.get(n, n) for n in self.objects), views=views
        )

    def same_place(self, other: ColumnGroup, name: str) -> bool:
        """True if column `name` is the same rows of the same column of the same sources in both."""
        return (
            len(self.views) == len(other.views)
            and all(
                a.source.ref == b.source.ref and a.origin(name) == b.origin(name)
                for a, b in zip(self.views, other.views, strict=True)
            )
            and np.array_equal(self.which, other.which)
            and np.array_equal(self.row, other.row)
        )


def stacked_groups(
    parts: Sequence[ColumnGroup], tensors: Sequence[str], objects: Sequence[str]
) -> ColumnGroup:
    """The named columns of several groups, row on row."""
    offsets = np.cumsum([0, *(len(part.views) for part in parts)]).tolist()
    return ColumnGroup(
        tuple(tensors),
        tuple(objects),
        tuple(view for part in parts for view in part.views),
        np.concatenate([part.which + offset for part, offset in zip(parts, offsets, strict=False)]),
        np.concatenate([part.row for part in parts]),
    )


@dataclass(frozen=True)
class Take:
    """Rows of one source: its place among the sources, the names of its columns there, and which rows."""

    position: int
    renamed: dict[str, str]
    index: RowIndex

    def column(self, columns: Any, name: str) -> Any:
        """The rows of the column that is called `name` here."""
        return take_rows(columns[self.renamed.get(name, name)], self.index)


@dataclass(frozen=True)
class GroupRecipe:
    """Takes whose stack, put into `order`, is the group's share."""

    tensors: tuple[str, ...]
    objects: tuple[str, ...]
    takes: tuple[Take, ...]
    order: IntArray | None

    def column(self, columns: Sequence[Any], name: str, private: bool) -> Any:
        """Build one column from the sources' columns, in memory of its own if `private`."""
        parts = [take.column(columns[take.position], name) for take in self.takes]
        stacked = stack_rows(name, parts)
        if self.order is not None:
            stacked = take_rows(stacked, self.order)
        copied = len(parts) > 1 or not isinstance(self.takes[0].index, slice)
        is_object = isinstance(stacked, np.ndarray) and stacked.dtype == object
        return own(stacked) if private and (is_object or not copied) else stacked


@dataclass(frozen=True)
class Recipe:
    """How to build a batch from the values of its sources. `groups` None: the only source as it is."""

    groups: tuple[GroupRecipe, ...] | None
    rows: int = 0
    has_batch: bool = False
    meta: dict[str, Any] | None = None

    def build(self, values: Sequence[Any], private: bool = True) -> Any:
        """The batch; `private` gives it memory that no other reader of the sources sees."""
        if self.groups is None:
            return values[0].clone() if private and isinstance(values[0], DataProto) else values[0]
        batches = [value.batch for value in values]
        arrays = [value.non_tensor_batch for value in values]
        tensors = {
            name: group.column(batches, name, private) for group in self.groups for name in group.tensors
        }
        objects = {
            name: group.column(arrays, name, private) for group in self.groups for name in group.objects
        }
        meta = own(self.meta or {}) if private else self.meta or {}
        return DataProto._of(Contents.of(tensors if self.has_batch else None, objects, meta, self.rows))


@dataclass(frozen=True, eq=False)
class Piece:
    """One consumer's share: the sources it must read, and the recipe."""

    sources: tuple[Source, ...]
    recipe: Recipe

    def columns(self, position: int) -> set[str]:
        """What the recipe reads of a source, by the names there."""
        return {
            take.renamed.get(name, name)
            for group in self.recipe.groups or ()
            for take in group.takes
            if take.position == position
            for name in (*group.tensors, *group.objects)
        }


def _shortest(rows: IntArray) -> RowIndex:
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1, 1)
    return rows if len(rows) else slice(0, 0, 1)


class _PieceBuilder:
    """Gathers the sources of one piece while the recipes of its groups are written."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._place: dict[Any, int] = {}

    def take(self, view: View, index: RowIndex) -> Take:
        """A take from a source, which is given a place among the piece's sources."""
        ref = view.source.ref
        if ref not in self._place:
            self._place[ref] = len(self.sources)
            self.sources.append(view.source)
        return Take(self._place[ref], view.renamed, index)

    def recipe(self, group: ColumnGroup, start: int, stop: int) -> GroupRecipe:
        """The takes of a group for rows `start:stop`; an empty piece still needs a source for its dtypes."""
        which, row = group.which[start:stop], group.row[start:stop]
        if not len(which):
            only = self.take(group.views[0], slice(0, 0, 1))
            return GroupRecipe(group.tensors, group.objects, (only,), None)
        if which[0] == which[-1] and (which == which[0]).all():
            only = self.take(group.views[which[0]], _shortest(row))
            return GroupRecipe(group.tensors, group.objects, (only,), None)
        used, first = np.unique(which, return_index=True)
        used = used[np.argsort(first)]
        takes = tuple(self.take(group.views[number], _shortest(row[which == number])) for number in used)
        order = None
        if 1 + int(np.count_nonzero(np.diff(which))) > len(used):  # a source comes back after another one
            rank = np.empty(int(which.max()) + 1, dtype=np.int64)
            rank[used] = np.arange(len(used))
            order = np.argsort(np.argsort(rank[which], kind="stable"), kind="stable")
        return GroupRecipe(group.tensors, group.objects, takes, order)


def piece_of(
    groups: Sequence[ColumnGroup], start: int, stop: int, has_batch: bool, meta: dict[str, Any]
) -> Piece:
    """The share of one consumer: rows `start:stop` of every group, and only the sources that hold them."""
    builder = _PieceBuilder()
    recipes = tuple(builder.recipe(group, start, stop) for group in groups)
    return Piece(tuple(builder.sources), Recipe(recipes, stop - start, has_batch, meta))
