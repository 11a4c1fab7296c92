"""Where the pieces of a future lie: in this process, or in Ray's object store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl_protocol.data_proto import DataProto
from rl_protocol.errors import FutureError, FutureTimeoutError


class Store(Protocol):
    """Gets and puts the values behind references."""

    def get(self, refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """The values behind `refs`, in order; raises what their producer raised."""

    def put(self, value: Any) -> Any:
        """Keep a value and return a reference to it."""

    def locate(self, ref: Any) -> Any:
        """What to hand to a remote call as an argument: a reference that Ray resolves, or the value."""

    def describe(self, refs: Sequence[Any]) -> list[Any]:
        """References to the `Head` of each value, made where the value lies."""

    def narrow(self, ref: Any, names: Sequence[str]) -> tuple[Any, Store]:
        """A reference to the named columns of a batch, made where the batch lies, and its store."""


@dataclass(frozen=True)
class Head:
    """What an edit must know of a piece: row count, column names, `meta_info`. No row travels with it."""

    rows: int
    has_batch: bool
    tensors: tuple[str, ...]
    objects: tuple[str, ...]
    meta: dict[str, Any] = field(default_factory=dict)


def head_of(value: Any) -> Head:
    """The head of a piece; a `FutureError` if the producer did not return a `DataProto`."""
    if not isinstance(value, DataProto):
        raise FutureError(
            f"the producer returned a {type(value).__name__}; only a DataProto can be edited as a future."
        )
    tensors = () if value.batch is None else tuple(map(str, value.batch.keys()))
    return Head(len(value), value.batch is not None, tensors, tuple(value.non_tensor_batch), value.meta_info)


def columns_of(value: DataProto, names: Sequence[str]) -> DataProto:
    """The named columns of a batch, without its `meta_info`."""
    tensors = [] if value.batch is None else [name for name in names if name in value.batch]
    return value.select(tensors, [name for name in names if name in value.non_tensor_batch], [])


class LocalRef:
    """A reference to a value in this process."""

    def __init__(self, value: Any) -> None:
        self.value = value


class LocalStore:
    """Values that lie in this process."""

    def get(self, refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """The values themselves; nothing is copied."""
        return [ref.value for ref in refs]

    def put(self, value: Any) -> LocalRef:
        """Wrap a value."""
        return LocalRef(value)

    def locate(self, ref: Any) -> Any:
        """The value itself."""
        return ref.value

    def describe(self, refs: Sequence[Any]) -> list[Any]:
        """Heads of the values, at once."""
        return [LocalRef(head_of(ref.value)) for ref in refs]

    def narrow(self, ref: Any, names: Sequence[str]) -> tuple[Any, Store]:
        """The batch itself: nothing moves."""
        return ref, self


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

    def narrow(self, ref: Any, names: Sequence[str]) -> tuple[Any, Store]:
        """The columns, cut out by a small task: Ray runs it on the node that holds the batch."""
        import ray

        return ray.remote(num_cpus=0)(columns_of).remote(ref, list(names)), _RAY


_LOCAL, _RAY = LocalStore(), RayStore()


def store_of(refs: Sequence[Any]) -> Store:
    """The plain store that these references belong to."""
    return _LOCAL if all(isinstance(ref, LocalRef) for ref in refs) else _RAY
