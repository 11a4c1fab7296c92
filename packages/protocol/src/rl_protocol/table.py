"""The table behind a future: column groups, row count, meta information, and where it is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rl_protocol.combine import check_names
from rl_protocol.data_proto import DataProto
from rl_protocol.errors import ColumnConflictError, ShapeError
from rl_protocol.meta import concat_meta, union_meta
from rl_protocol.pieces import ColumnGroup, Piece, Source, View, piece_of, stacked_groups
from rl_protocol.rows import RowIndex, balanced_sizes, selected_rows
from rl_protocol.stores import Head, LocalRef, LocalStore, head_of

_HERE = LocalStore()


def kept_columns(
    groups: Iterable[ColumnGroup], tensors: set[str], objects: set[str]
) -> tuple[ColumnGroup, ...]:
    """The groups with only the named columns; groups left without columns are dropped."""
    kept = (group.keep(tensors, objects) for group in groups)
    return tuple(group for group in kept if group.tensors or group.objects)


@dataclass(frozen=True, eq=False)
class Table:
    """Every column of a future and the sources of its rows.

    `cuts` are the sizes of the pieces as their producers made them, kept while an edit leaves every row with
    its neighbours; None once rows have moved: consumers are then given balanced shares.
    """

    groups: tuple[ColumnGroup, ...]
    rows: int
    has_batch: bool
    meta: dict[str, Any]
    cuts: list[int] | None

    @classmethod
    def from_heads(cls, sources: Sequence[Source], heads: Iterable[Head], merge: bool = True) -> Table:
        """Whole pieces in row order; `merge=False` takes the first piece's `meta_info` as it is."""
        heads = list(heads)
        if not heads:
            raise ShapeError("concat needs at least one batch, got an empty list.")
        for number, head in enumerate(heads[1:], 1):
            check_names(number, "tensor", head.tensors, heads[0].tensors)
            check_names(number, "object", head.objects, heads[0].objects)
        sizes = [head.rows for head in heads]
        which = np.repeat(np.arange(len(heads)), sizes)
        row = np.concatenate([np.arange(size) for size in sizes])
        tensors, objects = heads[0].tensors, heads[0].objects
        known = [replace(source, numbers=head.numbers) for source, head in zip(sources, heads, strict=True)]
        views = tuple(View(source, {}) for source in known)
        group = ColumnGroup(tensors, objects, views, which, row)
        meta = concat_meta([head.meta for head in heads]) if merge else heads[0].meta
        has_batch = any(head.has_batch for head in heads)
        return cls((group,) if tensors or objects else (), sum(sizes), has_batch, meta, sizes)

    @classmethod
    def of_data(cls, data: DataProto) -> Table:
        """A batch that is here already, as one piece."""
        return cls.from_heads([Source(LocalRef(data), LocalStore())], [head_of(data)], merge=False)

    @property
    def tensors(self) -> list[str]:
        """Names of the tensor columns."""
        return [name for group in self.groups for name in group.tensors]

    @property
    def objects(self) -> list[str]:
        """Names of the object columns."""
        return [name for group in self.groups for name in group.objects]

    def take(self, index: RowIndex, cuts: list[int] | None = None) -> Table:
        """The table with its rows chosen by `index`."""
        groups = tuple(group.take(index) for group in self.groups)
        return replace(self, groups=groups, rows=selected_rows(index), cuts=cuts)

    def union(self, other: Table) -> Table:
        """The columns of both; columns that both hold are compared and kept once."""
        described = self.groups or self.has_batch, other.groups or other.has_batch
        if all(described) and self.rows != other.rows:
            raise ShapeError(f"cannot unite batches of {self.rows} and {other.rows} rows.")
        clash = sorted({*self.tensors} & {*other.objects} | {*self.objects} & {*other.tensors})
        if clash:
            raise ColumnConflictError(f"columns {clash} are tensors in one batch and objects in the other.")
        self._compare_shared(other)
        extra = kept_columns(
            other.groups, {*other.tensors} - {*self.tensors}, {*other.objects} - {*self.objects}
        )
        first = self if described[0] else other
        return Table(
            self.groups + extra,
            first.rows,
            self.has_batch or other.has_batch,
            union_meta(self.meta, other.meta),
            first.cuts,
        )

    def _compare_shared(self, other: Table) -> None:
        """Raise unless the columns that both hold are equal; only those from different places are fetched."""
        doubtful_tensors = {n for n in {*self.tensors} & {*other.tensors} if not self._same_place(other, n)}
        doubtful_objects = {n for n in {*self.objects} & {*other.objects} if not self._same_place(other, n)}
        if not doubtful_tensors and not doubtful_objects:
            return
        left, right = (
            replace(
                table, groups=kept_columns(table.groups, doubtful_tensors, doubtful_objects), meta={}
            ).resolve()
            for table in (self, other)
        )
        left.union(right)

    def _same_place(self, other: Table, name: str) -> bool:
        return self._group_of(name).same_place(other._group_of(name), name)

    def _group_of(self, name: str) -> ColumnGroup:
        return next(group for group in self.groups if name in group.tensors or name in group.objects)

    @classmethod
    def stack(cls, tables: Sequence[Table]) -> Table:
        """Stack tables row on row; columns that travel together in every part stay in one group."""
        first = tables[0]
        for number, table in enumerate(tables[1:], 1):
            check_names(number, "tensor", table.tensors, first.tensors)
            check_names(number, "object", table.objects, first.objects)
        together: dict[tuple[int, ...], list[str]] = {}
        for name in [*first.tensors, *first.objects]:
            together.setdefault(tuple(id(table._group_of(name)) for table in tables), []).append(name)
        groups = tuple(
            stacked_groups(
                [table._group_of(names[0]) for table in tables],
                [name for name in names if name in first.tensors],
                [name for name in names if name in first.objects],
            )
            for names in together.values()
        )
        return cls(
            groups,
            sum(table.rows for table in tables),
            any(table.has_batch for table in tables),
            concat_meta([table.meta for table in tables]),
            None,
        )

    def pieces(self, consumers: int) -> list[Piece]:
        """One piece for each consumer, cut where the producers cut if the numbers agree."""
        sizes = (
            self.cuts
            if self.cuts is not None and len(self.cuts) == consumers
            else balanced_sizes(self.rows, consumers)
        )
        ends = np.cumsum(sizes).tolist()
        return [
            piece_of(self.groups, end - size, end, self.has_batch, self.meta)
            for end, size in zip(ends, sizes, strict=True)
        ]

    def resolve(self, timeout: float | None = None, private: bool = False) -> DataProto:
        """Fetch what is needed of the sources and build the whole batch here."""
        piece = piece_of(self.groups, 0, self.rows, self.has_batch, self.meta)
        sources = [_needed(piece, position) for position in range(len(piece.sources))]
        by_store: dict[int, list[Source]] = {}
        for source in sources:
            by_store.setdefault(id(source.store), []).append(source)
        values: dict[Any, Any] = {}
        for members in by_store.values():
            fetched = members[0].store.get([source.ref for source in members], timeout)
            values.update({source.ref: value for source, value in zip(members, fetched, strict=True)})
        built: DataProto = piece.recipe.build([values[source.ref] for source in sources], private)
        return built


def _needed(piece: Piece, position: int) -> Source:
    """A source, or what is here of it where the piece reads no more."""
    source = piece.sources[position]
    if source.numbers is None or source.numbers.batch is None:
        return source
    here = piece.columns(position) <= set(source.numbers.batch.keys())
    return Source(LocalRef(source.numbers), _HERE) if here else source
