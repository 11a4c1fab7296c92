"""Dispatch modes: how a call's arguments are spread over workers and its results gathered.

A `dispatch_fn(group, *args, **kwargs)` returns `(args, kwargs)` in which every value is a list or tuple with
exactly one entry per worker. The mode alone decides whether a value is scattered or repeated.
A `collect_fn(group, outputs)` gets one output per worker that ran, in rank order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl_controller.batches import is_batch, is_future
from rl_controller.errors import DispatchError

Spread = tuple[tuple[Any, ...], dict[str, Any]]
DispatchFn = Callable[..., Spread]
CollectFn = Callable[[Any, list[Any]], Any]
"""Its first argument is a `Group`; a user's function may ask for a `WorkerGroup`, which is what it gets."""


class Group(Protocol):
    """What a mode needs to know of the group that is called."""

    @property
    def name(self) -> str:
        """For error messages."""

    @property
    def world_size(self) -> int:
        """Number of workers."""

    def mesh(self, name: str) -> Mesh:
        """The layout that the workers registered under `name`."""


@dataclass(frozen=True)
class DispatchMode:
    """A named pair of functions.

    Attributes:
        collect_ranks: for modes whose results are pieces of one batch: the ranks to take them from, in row
            order. Results of other ranks are not sent. None: every result counts.
        rank_zero_only: the call runs on rank 0 whatever the execute mode says.
    """

    name: str
    dispatch_fn: DispatchFn
    collect_fn: CollectFn
    collect_ranks: Callable[[Any], list[int]] | None = None
    rank_zero_only: bool = False


def _map_values(fn: Callable[[str, Any], Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Spread:
    spread = tuple(fn(f"argument {number}", value) for number, value in enumerate(args))
    return spread, {name: fn(f"argument {name!r}", value) for name, value in kwargs.items()}


def dispatch_one_to_all(group: Group, *args: Any, **kwargs: Any) -> Spread:
    """Every worker gets every value, and all rows of a future."""

    def spread(where: str, value: Any) -> Sequence[Any]:
        whole = value.pieces(1)[0] if is_future(value) else value
        return [whole] * group.world_size

    return _map_values(spread, args, kwargs)


def dispatch_all_to_all(group: Group, *args: Any, **kwargs: Any) -> Spread:
    """Lists and tuples hold one value per worker; anything else is the same for all."""

    def spread(where: str, value: Any) -> Sequence[Any]:
        if not isinstance(value, list | tuple):
            return [value] * group.world_size
        if len(value) != group.world_size:
            raise DispatchError(
                f"{where} has {len(value)} values for the {group.world_size} workers of {group.name!r}; "
                f"this mode hands one to each."
            )
        return value

    return _map_values(spread, args, kwargs)


def _cut_for(value: Any, parts: int) -> list[Any]:
    """A batch or future as one piece per part; anything else repeated."""
    if is_batch(value):
        return list(value.chunk(parts))
    if is_future(value):
        return list(value.pieces(parts))
    return [value] * parts


def dispatch_dp_compute_data_proto(group: Group, *args: Any, **kwargs: Any) -> Spread:
    """Batches and futures are cut into one piece per worker, uneven and empty pieces included."""
    return _map_values(lambda _, value: _cut_for(value, group.world_size), args, kwargs)


def dispatch_with_func(group: Group, func: Any, *args: Any, **kwargs: Any) -> Spread:
    """The first argument is a function for every worker; the others are cut."""
    if not callable(func):
        raise DispatchError(f"this mode takes a function as its first argument, got {type(func).__name__}.")
    spread, named = dispatch_dp_compute_data_proto(group, *args, **kwargs)
    return ([func] * group.world_size, *spread), named


def collect_all(group: Group, outputs: list[Any]) -> Any:
    """The list of outputs, one per worker."""
    return outputs


def collect_first(group: Group, outputs: list[Any]) -> Any:
    """The output of the only worker that ran."""
    return outputs[0]


def collect_batches(group: Group, outputs: list[Any]) -> Any:
    """Batches are stacked into one; if no worker returned one, the list of outputs (None if all are None)."""
    batches = [output for output in outputs if is_batch(output)]
    if len(batches) == len(outputs) and batches:
        return type(batches[0]).concat(batches)
    if batches:
        kinds = [type(output).__name__ for output in outputs]
        raise DispatchError(
            f"some workers of group {group.name!r} returned a DataProto, some did not: {kinds}."
        )
    return None if all(output is None for output in outputs) else outputs


def _every_rank(group: Group) -> list[int]:
    return list(range(group.world_size))


class Dispatch:
    """The modes by name. `Dispatch.register` adds one."""

    RANK_ZERO = DispatchMode("RANK_ZERO", dispatch_one_to_all, collect_first, rank_zero_only=True)
    ONE_TO_ALL = DispatchMode("ONE_TO_ALL", dispatch_one_to_all, collect_all)
    ALL_TO_ALL = DispatchMode("ALL_TO_ALL", dispatch_all_to_all, collect_all)
    DP_COMPUTE = DispatchMode("DP_COMPUTE", dispatch_all_to_all, collect_all)
    DP_COMPUTE_PROTO = DispatchMode(
        "DP_COMPUTE_PROTO", dispatch_dp_compute_data_proto, collect_batches, _every_rank
    )
    DP_COMPUTE_PROTO_WITH_FUNC = DispatchMode(
        "DP_COMPUTE_PROTO_WITH_FUNC", dispatch_with_func, collect_batches, _every_rank
    )
    DP_COMPUTE_METRIC = DispatchMode("DP_COMPUTE_METRIC", dispatch_dp_compute_data_proto, collect_all)

    @classmethod
    def register(cls, name: str, dispatch_fn: DispatchFn, collect_fn: CollectFn) -> DispatchMode:
        """Add a mode under a new name; it is then `Dispatch.<name>`."""
        if not name.isidentifier() or hasattr(cls, name):
            raise DispatchError(f"{name!r} is not a free name for a dispatch mode.")
        mode = DispatchMode(name, dispatch_fn, collect_fn)
        setattr(cls, name, mode)
        return mode


def register_dispatch_mode(name: str, dispatch_fn: DispatchFn, collect_fn: CollectFn) -> DispatchMode:
    """The same as `Dispatch.register`."""
    return Dispatch.register(name, dispatch_fn, collect_fn)


@dataclass(frozen=True)
class Mesh:
    """A group's layout under one mesh name."""

    dp_ranks: tuple[int, ...]
    """Data-parallel rank of each worker: workers with the same one read the same rows."""
    collect_ranks: tuple[int, ...]
    """Workers whose results count, in the order of their data-parallel ranks."""

    @classmethod
    def of(cls, name: str, shares: Sequence[tuple[int, bool]]) -> Mesh:
        """Check what the workers registered, `(dp rank, is collected from)` each, and arrange it."""
        dp_ranks = tuple(dp_rank for dp_rank, _ in shares)
        size = max(dp_ranks) + 1
        collected = {dp: rank for rank, (dp, is_collect) in enumerate(shares) if is_collect}
        n_collect = sum(is_collect for _, is_collect in shares)
        if set(dp_ranks) != set(range(size)) or set(collected) != set(range(size)) or n_collect != size:
            raise DispatchError(
                f"mesh {name!r}: the workers registered (dp rank, collect) {list(shares)}; every dp rank "
                f"from 0 to {size - 1} must appear, with exactly one worker to collect from."
            )
        return cls(dp_ranks, tuple(collected[dp] for dp in range(size)))


@dataclass(frozen=True)
class _MeshDispatch:
    """Cuts batches by data-parallel rank. A class, so that it can be pickled with the registration."""

    mesh_name: str

    def __call__(self, group: Group, *args: Any, **kwargs: Any) -> Spread:
        mesh = group.mesh(self.mesh_name)

        def spread(_: str, value: Any) -> list[Any]:
            pieces = _cut_for(value, len(mesh.collect_ranks))
            return [pieces[dp_rank] for dp_rank in mesh.dp_ranks]

        return _map_values(spread, args, kwargs)


@dataclass(frozen=True)
class _MeshCollect:
    """The ranks whose results are kept, in row order."""

    mesh_name: str

    def __call__(self, group: Group) -> list[int]:
        return list(group.mesh(self.mesh_name).collect_ranks)


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str) -> DispatchMode:
    """Dispatch by mesh: ranks with one dp rank get the same rows, one of them is collected from.

    The workers declare their share with `_register_dispatch_collect_info(mesh_name, dp_rank, is_collect)`.
    """
    return DispatchMode(
        f"mesh:{mesh_name}", _MeshDispatch(mesh_name), collect_batches, _MeshCollect(mesh_name)
    )
