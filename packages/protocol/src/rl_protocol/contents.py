"""What a batch holds, as plain values: the form that every file below `data_proto` works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tensordict import TensorDict

from rl_protocol.rows import ObjectArray


class Contents(NamedTuple):
    """The columns of B rows, and what belongs to the batch as a whole. `DataProto(*contents)` is the batch.

    `batch` holds the tensors `[B, ...]` and is None in a batch without them; `objects` are arrays `[B, ...]`.
    """

    batch: TensorDict | None
    objects: dict[str, ObjectArray]
    meta: dict[str, Any]

    @classmethod
    def of(
        cls, tensors: dict[str, Any] | None, objects: dict[str, Any], meta: Mapping[str, Any], rows: int
    ) -> Contents:
        """From dicts; `tensors` None means a batch without tensors."""
        batch = None if tensors is None else TensorDict(tensors, batch_size=[rows])
        return cls(batch, objects, dict(meta))

    @property
    def rows(self) -> int:
        """B; 0 where there is nothing that has rows."""
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        return next((len(column) for column in self.objects.values()), 0)

    @property
    def tensors(self) -> dict[str, Any]:
        """The tensor columns by name."""
        return {} if self.batch is None else dict(self.batch.items())

    @property
    def has_columns(self) -> bool:
        """False where there is `meta` only."""
        return self.batch is not None or bool(self.objects)

    def with_columns(self, tensors: dict[str, Any], objects: dict[str, Any], rows: int) -> Contents:
        """Other columns and the same `meta`; without tensors where there were none."""
        return Contents.of(None if self.batch is None else tensors, objects, self.meta, rows)

    def each(self, change: Callable[[Any], Any], rows: int) -> Contents:
        """Every column put through `change`, which makes `rows` rows of it."""
        return self.with_columns(
            {name: change(column) for name, column in self.tensors.items()},
            {name: change(column) for name, column in self.objects.items()},
            rows,
        )
