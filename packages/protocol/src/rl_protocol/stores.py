"""Where the pieces of a future lie: in this process, or in Ray's object store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl_protocol.data_proto import DataProto
from rl_protocol.errors import FutureError, FutureTimeoutError


class Store(Protocol):
    """Gets and puts the values behind references."""

    def get(self, refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """The values behind `refs`, in order; raises what their producer raised."""

    def wait_any(self, refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """The references whose values are there, or that failed; waits for the first, `timeout` seconds."""

    def put(self, value: Any) -> Any:
        """Keep a value and return a reference to it."""

    def locate(self, ref: Any) -> Any:
        """What to hand to a remote call as an argument: a reference that Ray resolves, or the value."""

    def describe(self, refs: Sequence[Any]) -> list[Any]:
        """References to the `Head` of each value, made where the value lies."""


@dataclass(frozen=True)
class Head:
    """What an edit must know of a piece, and what is asked for most; no column per token travels with it.

    Attributes:
        rows: how many there are.
        has_batch: whether the piece has tensors at all.
        tensors, objects: names of its columns.
        meta: its `meta_info`.
        numbers: its tensor columns of one number per row, e.g. lengths and scores.
    """

    rows: int
    has_batch: bool
    tensors: tuple[str, ...]
    objects: tuple[str, ...]
    meta: dict[str, Any]
    numbers: DataProto


def head_of(value: Any) -> Head:
    """The head of a piece; a `FutureError` if the producer did not return a `DataProto`."""
    if not isinstance(value, DataProto):
        raise FutureError(
            f"the producer returned a {type(value).__name__}; only a DataProto can be edited as a future."
        )
    columns = {} if value.batch is None else {str(name): column for name, column in value.batch.items()}
    numbers = value.select([name for name, column in columns.items() if column.dim() == 1], [], []).clone()
    objects = tuple(value.non_tensor_batch)
    return Head(len(value), value.batch is not None, tuple(columns), objects, value.meta_info, numbers)


class LocalRef:
    """A reference to a value in this process."""

    def __init__(self, value: Any) -> None:
        self.value = value


class LocalStore:
    """Values that lie in this process."""

    def get(self, refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """The values themselves; nothing is copied."""
        return [ref.value for ref in refs]

    def wait_any(self, refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """All of them."""
        return list(refs)

    def put(self, value: Any) -> LocalRef:
        """Wrap a value."""
        return LocalRef(value)

    def locate(self, ref: Any) -> Any:
        """The value itself."""
        return ref.value

    def describe(self, refs: Sequence[Any]) -> list[Any]:
        """Heads of the values, at once."""
        return [LocalRef(head_of(ref.value)) for ref in refs]


class RayStore:
    """Values in Ray's object store. Needs the extra `rl-protocol[ray]`."""

    def get(self, refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """`ray.get`, with its time-out as a `FutureTimeoutError`."""
        import ray

        try:
            values: list[Any] = ray.get(list(refs), timeout=timeout)
        except ray.exceptions.GetTimeoutError as error:
            raise FutureTimeoutError(f"{len(refs)} pieces were not ready within {timeout} s.") from error
        return values

    def wait_any(self, refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """`ray.wait`: all that are there, at least one before the time-out."""
        import ray

        count = len(refs)
        ready: list[Any] = ray.wait(list(refs), num_returns=count, timeout=0, fetch_local=False)[0]
        return ready or ray.wait(list(refs), num_returns=1, timeout=timeout, fetch_local=False)[0]

    def put(self, value: Any) -> Any:
        """`ray.put`."""
        import ray

        return ray.put(value)

    def locate(self, ref: Any) -> Any:
        """The reference: Ray resolves it on arrival."""
        return ref

    def describe(self, refs: Sequence[Any]) -> list[Any]:
        """Heads made by a small task each, so that the values themselves need not come here."""
        import ray

        task = ray.remote(num_cpus=0)(head_of)
        return [task.remote(ref) for ref in refs]


def store_of(refs: Sequence[Any]) -> Store:
    """The plain store that these references belong to."""
    return LocalStore() if all(isinstance(ref, LocalRef) for ref in refs) else RayStore()
