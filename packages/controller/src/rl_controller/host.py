"""The worker's side of a call: what stands between a Ray actor and the user's class.

`hosted(cls)` derives an actor class whose construction is put off until the group knows its rendezvous
address, and whose `_rl_call` is the one door through which the group calls methods.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rl_controller.batches import is_batch, private
from rl_controller.decorator import Registration, registered_methods
from rl_controller.errors import UnknownMethodError, UnknownRoleError, WorkerStateError
from rl_controller.rank_info import RankInfo
from rl_controller.worker import bind_master

REF_PREFIX = "_rl_ref_"


@dataclass(frozen=True)
class CallSpec:
    """Which method to call and how: short, for it is sent with every call.

    Attributes:
        role: role inside a fused worker, or "".
        private: give the method memory of its own.
        discard: do not send the result.
        head: return `(result, head of the result)`.
    """

    method: str
    role: str = ""
    private: bool = True
    discard: bool = False
    head: bool = False

    def encode(self) -> str:
        """As a string, which Ray sends faster than any object."""
        return f"{self.method}:{self.role}:{self.private:d}{self.discard:d}{self.head:d}"

    @classmethod
    def decode(cls, text: str) -> CallSpec:
        """The inverse of `encode`."""
        method, role, flags = text.split(":")
        return cls(method, role, *(flag == "1" for flag in flags))


@dataclass(frozen=True)
class BoundPiece:
    """A piece of a future as an argument: the recipe, and which of the call's references it reads."""

    recipe: Any
    first: int
    count: int


@dataclass(frozen=True)
class Description:
    """What a worker says of itself to a group that attaches to it."""

    info: RankInfo
    node: str
    roles: dict[str, dict[str, Registration]]


def incoming(args: tuple[Any, ...], kwargs: dict[str, Any], own: bool) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as the method is to see them: pieces built, batches its own unless it only reads."""
    refs = [kwargs.pop(key) for key in [k for k in kwargs if k.startswith(REF_PREFIX)]]

    def arrive(value: Any) -> Any:
        if isinstance(value, BoundPiece):
            return value.recipe.build(refs[value.first : value.first + value.count], private=own)
        return private(value) if own else value

    return [arrive(value) for value in args], {key: arrive(value) for key, value in kwargs.items()}


def outgoing(spec: CallSpec, result: Any) -> Any:
    """The result as it is to be sent."""
    if spec.discard:
        result = None
    if not spec.head:
        return result
    if not is_batch(result):
        return result, None
    from rl_protocol import head_of

    return result, head_of(result)


class Host:
    """Mix-in of actor classes. Its names start with `_rl_` to stay out of the user's way."""

    _rl_rank_info: RankInfo | None
    _rl_constructed = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._rl_init = (args, kwargs)

    def _rl_prepare(self, info: RankInfo, log_path: str | None) -> None:
        """First call on every worker: its place, and where its output goes."""
        self._rl_rank_info = info
        os.environ.update(info.as_env())
        if log_path:
            _redirect_output(log_path)

    def _rl_bind(self, ports: tuple[int, ...]) -> tuple[str, int]:
        """On rank 0: bind the rendezvous socket."""
        return bind_master(ports)

    def _rl_construct(self, address: tuple[str, int] | None) -> str:
        """Run the user's constructor; returns the id of the node it runs on."""
        info = self._rl_rank_info or RankInfo()
        if address is not None:
            info = self._rl_rank_info = replace(info, master_addr=address[0], master_port=address[1])
            os.environ.update(info.as_env())
        args, kwargs = self._rl_init
        super().__init__(*args, **kwargs)
        self._rl_constructed = True
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def _rl_target(self, role: str) -> Any:
        """The object that plays a role; without fusing, the actor itself."""
        if not role:
            return self
        roles: dict[str, Any] = getattr(self, "_rl_roles", {})
        if role not in roles:
            raise UnknownRoleError(f"no role {role!r} in this worker; it plays {sorted(roles)}.")
        return roles[role]

    def _rl_method(self, spec: CallSpec) -> Callable[..., Any]:
        if not self._rl_constructed:
            raise WorkerStateError("Ray restarted this worker: its state is lost. Rebuild the group.")
        target = self._rl_target(spec.role)
        method = getattr(target, spec.method, None)
        if not callable(method):
            raise UnknownMethodError(f"{type(target).__name__} has no method {spec.method!r}.")
        return method  # type: ignore[no-any-return]

    def _rl_mesh(self, role: str) -> dict[str, tuple[int, bool]]:
        """The meshes a role has registered."""
        info = getattr(self._rl_target(role), "_mesh_info", dict)
        return dict(info())

    def _rl_describe(self) -> Description:
        """For a group that attaches to a detached worker."""
        import ray

        played: dict[str, Any] = getattr(self, "_rl_roles", {})
        roles = {role: registered_methods(type(worker)) for role, worker in played.items()}
        roles[""] = registered_methods(type(self))
        node = str(ray.get_runtime_context().get_node_id())
        return Description(self._rl_rank_info or RankInfo(), node, roles)

    def _rl_transfer(self) -> Any:
        """Bytes of batches this process has moved."""
        from rl_protocol import transfer_count

        return transfer_count()

    def _rl_release_peers(self) -> None:
        """After a failure: if peers may wait here in a collective, leave, so that they fail at once."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_initialized():
            os._exit(1)


class SyncHost(Host):
    """Host of a class without async methods: calls run one after the other."""

    def _rl_call(self, text: str, *args: Any, **kwargs: Any) -> Any:
        return self._rl_run(CallSpec.decode(text), args, kwargs)

    def _rl_run(self, spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        method = self._rl_method(spec)
        arrived, named = incoming(args, kwargs, spec.private)
        return outgoing(spec, method(*arrived, **named))


class AsyncHost(Host):
    """Host of a class with async methods: these run concurrently, the others block the worker."""

    async def _rl_call(self, text: str, *args: Any, **kwargs: Any) -> Any:
        return await self._rl_run(CallSpec.decode(text), args, kwargs)

    async def _rl_run(self, spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        method = self._rl_method(spec)
        arrived, named = incoming(args, kwargs, spec.private)
        result = method(*arrived, **named)
        return outgoing(spec, await result if inspect.isawaitable(result) else result)


def has_async_methods(cls: type) -> bool:
    """True if any public method of the class, or of a role it fuses, is a coroutine function."""
    members = [cls, *getattr(cls, "_rl_role_classes", {}).values()]
    return any(
        inspect.iscoroutinefunction(getattr(member, name, None))
        for member in members
        for name in dir(member)
        if not name.startswith("__")
    )


def door(spec: CallSpec) -> str:
    """Name of the generated actor method for a role's method."""
    return f"_rl_do_{len(spec.role)}{spec.role}_{spec.method}"


def plain_spec(method: str, role: str, registration: Registration) -> CallSpec:
    """The call that a registered method's door makes: its result is sent, alone."""
    return CallSpec(method, role, private=not registration.read_only)


def _door_function(spec: CallSpec, is_async: bool) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._rl_run(spec, args, kwargs)

    async def call_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._rl_run(spec, args, kwargs)

    return call_async if is_async else call


def hosted(cls: type) -> type:
    """Derive the Ray actor class. Each registered method gets an actor method of its own, since passing its
    name as an argument makes a no-op call about 25% dearer."""
    base = AsyncHost if has_async_methods(cls) else SyncHost
    members: dict[str, Any] = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    for role, player in {"": cls, **getattr(cls, "_rl_role_classes", {})}.items():
        for method, registration in registered_methods(player).items():
            spec = plain_spec(method, role, registration)
            members[door(spec)] = _door_function(spec, base is AsyncHost)
    return type(cls.__name__, (base, cls), members)


def _redirect_output(path: str) -> None:
    """Send file descriptors 1 and 2 to a file, output of libraries included."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
