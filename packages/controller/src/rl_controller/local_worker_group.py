"""`LocalWorkerGroup`: one worker in this process, with the semantics of a remote one.

Arguments and results are copied as if they had been sent, so that a program that works here works on a
cluster, and a breakpoint in a worker method stops the debugger.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rl_controller.batches import is_batch
from rl_controller.decorator import Registration, registered_methods
from rl_controller.errors import CallError, UnknownMethodError, WorkerMethodError
from rl_controller.host import CallSpec
from rl_controller.init_args import ClassWithInitArgs
from rl_controller.rank_info import RankInfo, environment
from rl_controller.rendezvous import MasterSocket
from rl_controller.worker import WorkerHelper
from rl_controller.worker_group import WorkerGroup

if TYPE_CHECKING:
    from rl_protocol import DataProtoFuture, TransferCount


class LocalReference:
    """What a non-blocking call returns in place of an object reference."""

    def __init__(self, value: Any = None, error: CallError | None = None) -> None:
        self._value, self._error = value, error

    @property
    def value(self) -> Any:
        """The result; raises what the call raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def get(self, timeout: float | None = None) -> Any:
        """The result; raises what the call raised."""
        return self.value


class LocalReferences(list[LocalReference]):
    """References of one call."""

    def get(self, timeout: float | None = None) -> list[Any]:
        """The results."""
        return [reference.value for reference in self]


class LocalWorkerGroup(WorkerGroup):
    """The in-process backend: `LocalWorkerGroup(ray_cls_with_init=RayClassWithInitArgs(MyWorker, …))`."""

    def __init__(self, ray_cls_with_init: ClassWithInitArgs, name_prefix: str = "local") -> None:
        """Construct the worker here.

        Args:
            ray_cls_with_init: the class and its arguments; a `FusedWorker` too.
            name_prefix: name of the group, for error messages.
        """
        cls = ray_cls_with_init.worker_class
        worker: Any = object.__new__(cls)
        self._master = MasterSocket("127.0.0.1")  # for classes that call init_process_group("env://")
        worker._rl_rank_info = RankInfo(
            group=name_prefix, master_addr=self._master.host, master_port=self._master.port
        )
        with environment(worker._rl_rank_info.as_env()):
            args, kwargs = sent((ray_cls_with_init.args, ray_cls_with_init.kwargs))
            worker.__init__(*args, **kwargs)
        self.worker = worker
        super().__init__(name_prefix, 1, "", registered_methods(cls))

    def _roles(self) -> dict[str, dict[str, Registration]]:
        roles: dict[str, Any] = getattr(self.worker, "_rl_roles", {})
        return {name: registered_methods(type(role)) for name, role in roles.items()}

    def _with_role(self, role: str, methods: dict[str, Registration]) -> LocalWorkerGroup:
        group = type(self).__new__(type(self))
        group.worker, group._master = self.worker, self._master
        WorkerGroup.__init__(group, f"{self.name}.{role}", 1, role, methods)
        return group

    def _target(self, role: str) -> Any:
        return self.worker._rl_roles[role] if role else self.worker

    def _submit(self, rank: int, spec: CallSpec, args: list[Any], kwargs: dict[str, Any]) -> LocalReference:
        target = self._target(spec.role)
        method = getattr(target, spec.method, None)
        if not callable(method):
            raise UnknownMethodError(f"{type(target).__name__} has no method {spec.method!r}.")
        arrived = [_arrive(value, spec.private) for value in args]
        named = {key: _arrive(value, spec.private) for key, value in kwargs.items()}
        try:
            with environment(target.rank_info.as_env() if isinstance(target, WorkerHelper) else {}):
                result = method(*arrived, **named)
                if inspect.isawaitable(result):
                    result = _finish(result)
        except Exception as error:
            return LocalReference(error=self._failed(spec.method, error))
        return LocalReference(sent(result))

    def _failed(self, method: str, error: Exception) -> WorkerMethodError:
        text = "".join(traceback.format_exception(error))
        message = f"method {method!r} of group {self.name!r} raised on rank 0 (in process):\n{text}"
        failure = WorkerMethodError(message, self.name, method, [0], error)
        failure.__cause__ = error
        return failure

    def _results(self, method: str, ranks: Sequence[int], calls: list[LocalReference]) -> list[Any]:
        return [call.value for call in calls]

    def _references(self, method: str, ranks: Sequence[int], calls: list[LocalReference]) -> LocalReferences:
        return LocalReferences(calls)

    def _future(
        self, method: str, ranks: Sequence[int], counted: Sequence[int], calls: list[LocalReference]
    ) -> DataProtoFuture:
        from rl_protocol import DataProtoFuture, LocalStore

        return DataProtoFuture(calls, store=LocalStore())

    def _mesh_infos(self) -> list[dict[str, tuple[int, bool]]]:
        return [dict(getattr(self._target(self.role), "_mesh_info", dict)())]

    def transfer_counts(self) -> list[TransferCount]:
        """Bytes of batches that this process has moved: the driver and the worker are one."""
        from rl_protocol import transfer_count

        return [transfer_count()]

    def shutdown(self) -> None:
        """Let go of the worker; further calls raise."""
        self.worker = None


def sent(value: Any) -> Any:
    """A copy of a value as if it had been sent to another process."""
    if is_batch(value):
        return value.clone()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    from ray import cloudpickle

    return cloudpickle.loads(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def _arrive(value: Any, own: bool) -> Any:
    """An argument as the worker is to see it."""
    if is_batch(value):
        return value.clone() if own else value.clone_shallow()
    if isinstance(value, LocalReference):
        return sent(value.value)
    recipe = getattr(value, "recipe", None)
    if recipe is not None:  # a piece of a future
        return recipe.build([source.store.get([source.ref])[0] for source in value.sources], private=own)
    return sent(value)


def _finish(awaitable: Awaitable[Any]) -> Any:
    """Run a coroutine to its end, also where this thread runs an event loop already."""

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, wait()).result()
