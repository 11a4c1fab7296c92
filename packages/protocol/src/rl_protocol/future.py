"""`DataProtoFuture`: a batch whose rows are still with the workers that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rl_protocol.columns import rename_map
from rl_protocol.data_proto import DataProto
from rl_protocol.errors import FutureError, FutureTimeoutError, MissingColumnError, ShapeError
from rl_protocol.meta import pick_meta
from rl_protocol.pieces import Piece, Recipe, Source
from rl_protocol.rows import balanced_sizes, row_index
from rl_protocol.stores import LocalStore, Store, head_of, store_of
from rl_protocol.table import Table, kept_columns


class DataProtoFuture:
    """A list of pieces that editing methods rearrange and the consumer resolves.

    `select rename union repeat reorder slice concat chunk` do what they do on a `DataProto`, without
    fetching a row: they wait for the producers (they need row counts and column names) and edit the list.
    `reorder` changes `self`, as it does there. A future that was not edited can be passed on at once.
    A future with a `collect_fn` or `dispatch_fn` of its own resolves before it is edited.
    """

    def __init__(
        self,
        futures: Sequence[Any],
        collect_fn: Callable[[list[Any]], Any] | None = None,
        dispatch_fn: Callable[[Any], Any] | None = None,
        *,
        heads: Sequence[Any] | None = None,
        store: Store | None = None,
    ) -> None:
        """Wrap references to batches, one per piece, in row order.

        Args:
            futures: Ray object references, or `LocalRef`s.
            collect_fn: turns the list of values into the result; the default stacks them.
            dispatch_fn: applied to the collected result.
            heads: references to the `Head` of each piece, if the producer made them.
            store: reads the references; found out from them by default.
        """
        self.futures = list(futures)
        self.collect_fn = collect_fn
        self.dispatch_fn = dispatch_fn
        self._heads = None if heads is None else list(heads)
        self._store = store or store_of(self.futures)
        self._table: Table | None = None

    @classmethod
    def _from_table(cls, table: Table) -> DataProtoFuture:
        made = cls([], store=LocalStore())
        made._table = table
        return made

    @classmethod
    def from_data(cls, data: DataProto, store: Store, sizes: Sequence[int] | None = None) -> DataProtoFuture:
        """Put a real batch into a store, in pieces of the given sizes (default: one)."""
        parts = [data] if sizes is None else data._cut(sizes)
        refs = [store.put(part) for part in parts]
        sources = [Source(ref, store_of([ref])) for ref in refs]
        return cls._from_table(Table.from_heads(sources, [head_of(part) for part in parts], merge=False))

    # --- resolving --------------------------------------------------------------------------------------

    @property
    def _is_custom(self) -> bool:
        return self.collect_fn is not None or self.dispatch_fn is not None

    def _load(self) -> Table:
        """The table of pieces; waits for the producers the first time."""
        if self._table is None:
            if self._is_custom:
                self._table = Table.of_data(self.get())
            else:
                refs = self._heads or self._store.describe(self.futures)
                heads = self._store.get(refs)
                self._table = Table.from_heads([Source(ref, self._store) for ref in self.futures], heads)
        return self._table

    def get(self, timeout: float | None = None, read_only: bool = False) -> Any:
        """Fetch the batch. What comes back is the caller's to write, unless `read_only`.

        Raises:
            FutureTimeoutError: the producers did not finish within `timeout` seconds.
        """
        if self._table is None:
            values = self._store.get(self.futures, timeout)
            if self._is_custom:
                collected = (self.collect_fn or DataProto.concat)(values)
                return collected if self.dispatch_fn is None else self.dispatch_fn(collected)
            merged = DataProto.concat(values)
            return merged if read_only else merged._private(copied=len(values) > 1)
        return self._table.resolve(timeout, private=not read_only)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until every producer has finished; raises what they raised."""
        if self._table is None:
            self._store.get(self._heads or self._store.describe(self.futures), timeout)

    @staticmethod
    def wait_for(futures: Sequence[DataProtoFuture], count: int, timeout: float | None = None) -> list[int]:
        """Wait until `count` futures have a result or failed, and give the places of all that do by then.

        Raises:
            FutureTimeoutError: for `timeout` seconds no producer finished.
        """
        waiting = {place: f._heads or f.futures for place, f in enumerate(futures) if f._table is None}
        while waiting:
            refs = [ref for of_one in waiting.values() for ref in of_one]
            enough = len(futures) - len(waiting) >= count
            store = futures[next(iter(waiting))]._store
            ready = set(store.wait_any(refs, 0 if enough else timeout))
            if not ready and not enough:
                raise FutureTimeoutError(f"{len(waiting)} batches were not ready within {timeout} s.")
            left = {place: [ref for ref in of_one if ref not in ready] for place, of_one in waiting.items()}
            waiting = {place: of_one for place, of_one in left.items() if of_one}
            if enough:
                break
        return [place for place in range(len(futures)) if place not in waiting]

    def pieces(self, consumers: int) -> list[Piece]:
        """One piece per consumer. With equal layouts piece i is what producer i made and nothing else."""
        if self._table is None and not self._is_custom and len(self.futures) == consumers:
            return [Piece((Source(ref, self._store),), Recipe(None)) for ref in self.futures]
        return self._load().pieces(consumers)

    def __reduce__(self) -> Any:
        raise FutureError(
            "a future cannot be pickled: pass it to a group's method as an argument of its own, not inside a "
            "list or dict, or resolve it by .get() first."
        )

    # --- looking at it ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._load().rows

    @property
    def meta_info(self) -> dict[str, Any]:
        """The merged `meta_info` of the pieces; waits for the producers."""
        return self._load().meta

    # --- editing ----------------------------------------------------------------------------------------

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
    ) -> DataProtoFuture:
        """The named columns and meta keys; None means all of that kind."""
        table = self._load()
        tensors = table.tensors if batch_keys is None else list(batch_keys)
        objects = table.objects if non_tensor_batch_keys is None else list(non_tensor_batch_keys)
        lacking = [k for k in tensors if k not in table.tensors] + [
            k for k in objects if k not in table.objects
        ]
        if lacking:
            raise MissingColumnError(
                f"no columns {lacking}; the future holds {table.tensors} and {table.objects}."
            )
        meta = pick_meta(table.meta, meta_info_keys)
        return self._from_table(
            replace(table, groups=kept_columns(table.groups, set(tensors), set(objects)), meta=meta)
        )

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> DataProtoFuture:
        """Rename columns."""
        table = self._load()
        mapping = rename_map(old_keys, new_keys, [*table.tensors, *table.objects])
        groups = tuple(group.rename(mapping) for group in table.groups)
        return self._from_table(replace(table, groups=groups))

    def union(self, other: DataProtoFuture | DataProto) -> DataProtoFuture:
        """The columns of both. Only columns that both hold from different sources are fetched, to compare."""
        table = self._load()
        if isinstance(other, DataProto):
            store = table.groups[0].views[0].source.store if table.groups else LocalStore()
            fits = len(other) == table.rows
            other = self.from_data(other, store, table.cuts if fits else None)
        return self._from_table(table.union(other._load()))

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> DataProtoFuture:
        """Every row `repeat_times` times."""
        if repeat_times < 0:
            raise ShapeError(f"repeat_times must not be negative, got {repeat_times}.")
        table = self._load()
        rows = np.arange(table.rows)
        if not interleave:
            return self._from_table(table.take(np.tile(rows, repeat_times)))
        cuts = None if table.cuts is None else [size * repeat_times for size in table.cuts]
        return self._from_table(table.take(np.repeat(rows, repeat_times), cuts))

    def reorder(self, indices: Any) -> None:
        """Put the rows of `self` into the order of `indices`, in place."""
        table = self._load()
        self._table = table.take(row_index(indices, table.rows))

    def slice(
        self, start: int | None = None, end: int | None = None, step: int | None = None
    ) -> DataProtoFuture:
        """Rows `start:end:step`."""
        return self[slice(start, end, step)]

    def __getitem__(self, index: Any) -> DataProtoFuture:
        """Rows by a slice, list, array, tensor or bool mask."""
        if isinstance(index, int):
            raise FutureError("a future has no single rows: take future[i:i+1], or .get()[i].")
        table = self._load()
        return self._from_table(table.take(row_index(index, table.rows)))

    def chunk(self, chunks: int) -> list[DataProtoFuture]:
        """Exactly `chunks` futures whose sizes differ by at most one."""
        table = self._load()
        ends = np.cumsum(balanced_sizes(table.rows, chunks)).tolist()
        return [self._from_table(table.take(slice(a, b, 1))) for a, b in zip([0, *ends], ends, strict=False)]

    @staticmethod
    def concat(data: Sequence[DataProtoFuture | DataProto]) -> DataProtoFuture:
        """Stack futures (and real batches, which are put into the store) row on row."""
        if not data:
            raise ShapeError("concat needs at least one batch, got an empty list.")
        futures = [item for item in data if isinstance(item, DataProtoFuture)]
        loaded = [future._load() for future in futures]
        store = next((g.views[0].source.store for table in loaded for g in table.groups), LocalStore())
        tables = [
            item._load()
            if isinstance(item, DataProtoFuture)
            else DataProtoFuture.from_data(item, store)._load()
            for item in data
        ]
        return DataProtoFuture._from_table(Table.stack(tables))
