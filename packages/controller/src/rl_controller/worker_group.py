"""`WorkerGroup`: what every backend shares: bound methods, modes, meshes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rl_controller.batches import is_future
from rl_controller.decorator import Execute, Registration
from rl_controller.dispatch import Dispatch, DispatchMode, Mesh, Spread
from rl_controller.errors import DispatchError, UnknownMethodError, UnknownRoleError
from rl_controller.host import CallSpec

if TYPE_CHECKING:
    from rl_protocol import DataProtoFuture, TransferCount

_BROADCAST = Registration(Dispatch.ONE_TO_ALL, Execute.ALL, blocking=True, read_only=False)


class WorkerGroup(ABC):
    """Workers that are called as one.

    Registered methods of the worker class become methods of the group. To a type checker they are `Any`:
    annotate the result (`out: DataProto = group.compute(batch)`) and no cast is needed.
    """

    def __init__(self, name: str, world_size: int, role: str, methods: dict[str, Registration]) -> None:
        self.name = name
        self.role = role
        self._world_size = world_size
        self._registered = methods
        self._meshes: dict[str, Mesh] = {}
        self._bind(methods)

    def _bind(self, methods: dict[str, Registration]) -> None:
        for method, registration in methods.items():
            if hasattr(type(self), method):
                raise DispatchError(
                    f"worker method {method!r} has the name of a method of {type(self).__name__}; rename it."
                )
            setattr(self, method, partial(self._call, method, registration))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    else:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            methods = sorted(self.__dict__.get("_registered", ()))
            raise UnknownMethodError(
                f"group {self.__dict__.get('name')!r} has no method {name!r}; registered are {methods}. "
                f"Mark a worker method with @register, or call it by execute_all_sync({name!r}, …)."
            )

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return self._world_size

    @property
    def method_names(self) -> list[str]:
        """The registered methods."""
        return sorted(self._registered)

    # --- one call ---------------------------------------------------------------------------------------

    def _call(self, method: str, registration: Registration, /, *args: Any, **kwargs: Any) -> Any:
        """Spread the arguments, run, gather: what a bound method does."""
        mode = registration.dispatch
        args, kwargs = self._spread(method, mode, args, kwargs)
        rank_zero = mode.rank_zero_only or registration.execute is Execute.RANK_ZERO
        ranks = [0] if rank_zero else list(range(self.world_size))
        counted = ranks if mode.collect_ranks is None or rank_zero else mode.collect_ranks(self)
        spec = CallSpec(method, self.role, private=not registration.read_only)
        as_future = not registration.blocking and mode.collect_ranks is not None
        calls = [
            self._submit(
                rank,
                replace(spec, discard=rank not in counted, head=as_future),
                [values[rank] for values in args],
                {key: values[rank] for key, values in kwargs.items()},
            )
            for rank in ranks
        ]
        if as_future:
            return self._future(method, ranks, counted, calls)
        if not registration.blocking:
            return self._references(method, ranks, calls)
        outputs = self._results(method, ranks, calls)
        if counted is not ranks:
            place = {rank: position for position, rank in enumerate(ranks)}
            outputs = [outputs[place[rank]] for rank in counted]
        if registration.execute is Execute.RANK_ZERO:
            return outputs[0]
        return mode.collect_fn(self, outputs)

    def _spread(self, method: str, mode: DispatchMode, args: Sequence[Any], kwargs: dict[str, Any]) -> Spread:
        spread, named = mode.dispatch_fn(self, *args, **kwargs)
        for where, values in [*enumerate(spread), *named.items()]:
            if not isinstance(values, list | tuple) or len(values) != self.world_size:
                raise DispatchError(
                    f"dispatch mode {mode.name} of {self.name}.{method} must return a list with one entry "
                    f"for each of the {self.world_size} workers; for {where!r} {type(values).__name__}"
                    f"{f' of {len(values)}' if isinstance(values, list | tuple) else ''}."
                )
        return tuple(spread), dict(named)

    def mesh(self, name: str) -> Mesh:
        """The layout registered under `name`; asked of the workers once."""
        if name not in self._meshes:
            infos = self._mesh_infos()
            missing = [rank for rank, info in enumerate(infos) if name not in info]
            if missing:
                known = sorted({mesh for info in infos for mesh in info})
                raise DispatchError(
                    f"ranks {missing} of group {self.name!r} have no mesh {name!r} (but {known}). "
                    f"Call _register_dispatch_collect_info where the model is built, and that first."
                )
            self._meshes[name] = Mesh.of(name, [info[name] for info in infos])
        return self._meshes[name]

    def forget_meshes(self) -> None:
        """Ask the workers for their layouts again, after they have registered new ones."""
        self._meshes.clear()

    def submit(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a registered method as its bound form does, but without waiting.

        Returns:
            A `DataProtoFuture` where the method's mode stacks batches, else references.
        """
        if method not in self._registered:
            self.__getattr__(method)  # raises the error that names what is registered
        return self._call(method, replace(self._registered[method], blocking=False), *args, **kwargs)

    def submit_to(self, rank: int, method: str, /, *args: Any) -> DataProtoFuture:
        """Call a registered method of one worker with whole batches and futures, without waiting."""
        if method not in self._registered:
            self.__getattr__(method)
        if not 0 <= rank < self.world_size:
            raise DispatchError(f"rank {rank}: group {self.name!r} has ranks 0 to {self.world_size - 1}.")
        private = not self._registered[method].read_only
        values = [value.pieces(1)[0] if is_future(value) else value for value in args]
        call = self._submit(rank, CallSpec(method, self.role, private=private, head=True), values, {})
        future: DataProtoFuture = self._future(method, [rank], [rank], [call])
        return future

    # --- by name ----------------------------------------------------------------------------------------

    def execute_all_sync(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call any method of every worker with the same arguments; the list of results."""
        outputs: list[Any] = self._call(method, _BROADCAST, *args, **kwargs)
        return outputs

    def execute_all_async(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """The same without waiting: references, one per worker. Their `.get()` waits for all."""
        references: list[Any] = self._call(method, replace(_BROADCAST, blocking=False), *args, **kwargs)
        return references

    def execute_rank_zero_sync(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call any method of rank 0."""
        return self._call(method, replace(_BROADCAST, execute=Execute.RANK_ZERO), *args, **kwargs)

    def execute_rank_zero_async(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """The same without waiting: one reference."""
        once = replace(_BROADCAST, execute=Execute.RANK_ZERO, blocking=False)
        return self._call(method, once, *args, **kwargs)[0]

    def execute_all(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """The same as `execute_all_async`."""
        return self.execute_all_async(method, *args, **kwargs)

    def execute_rank_zero(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """The same as `execute_rank_zero_async`."""
        return self.execute_rank_zero_async(method, *args, **kwargs)

    # --- roles ------------------------------------------------------------------------------------------

    def _roles(self) -> dict[str, dict[str, Registration]]:
        """Registered methods of each role of a fused worker."""
        return {}

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, Any]:
        """One group per role of a fused worker. All share the workers and keep them alive."""
        roles = self._roles()
        names = list(prefix_set)
        unknown = [name for name in names if name not in roles]
        if unknown:
            raise UnknownRoleError(f"group {self.name!r} plays no role {unknown}; it plays {sorted(roles)}.")
        return {name: self._with_role(name, roles[name]) for name in names}

    def fuse(self, prefix_set: Iterable[str]) -> None:
        """Make each role an attribute: `group.actor.update(…)` beside `group.actor_update(…)`."""
        for name, group in self.spawn(prefix_set).items():
            setattr(self, name, group)

    # --- what a backend provides ------------------------------------------------------------------------

    @abstractmethod
    def _submit(self, rank: int, spec: CallSpec, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Start a call on one worker and return a reference to its result (a pair with `spec.head`)."""

    @abstractmethod
    def _results(self, method: str, ranks: Sequence[int], calls: list[Any]) -> list[Any]:
        """Wait for calls; raise a `CallError` if any failed."""

    @abstractmethod
    def _references(self, method: str, ranks: Sequence[int], calls: list[Any]) -> Any:
        """References for the user."""

    @abstractmethod
    def _future(self, method: str, ranks: Sequence[int], counted: Sequence[int], calls: list[Any]) -> Any:
        """A future of the pieces that the `counted` ranks make."""

    @abstractmethod
    def _mesh_infos(self) -> list[dict[str, tuple[int, bool]]]:
        """Each worker's registered meshes."""

    @abstractmethod
    def _with_role(self, role: str, methods: dict[str, Registration]) -> WorkerGroup:
        """A group over the same workers that speaks to one role."""

    @abstractmethod
    def transfer_counts(self) -> list[TransferCount]:
        """Bytes of batches that each worker process has moved since it started."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the workers."""
