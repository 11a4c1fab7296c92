"""Errors of rl-controller: one root, each subclass also the standard type it refines."""

from __future__ import annotations

from collections.abc import Sequence


class RLControllerError(Exception):
    """Root of every error this package raises on purpose."""


class DispatchError(RLControllerError, ValueError):
    """The arguments of a call do not fit its dispatch mode."""


class UnknownMethodError(RLControllerError, AttributeError):
    """The workers of a group have no such method."""


class UnknownRoleError(RLControllerError, KeyError):
    """A fused worker has no such role."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class PoolError(RLControllerError, ValueError):
    """A resource pool is described, split or merged in a way that cannot be."""


class PlacementTimeoutError(RLControllerError, TimeoutError):
    """The cluster did not provide what a resource pool or a group asked for within its time-out."""


class RendezvousError(RLControllerError, RuntimeError):
    """The workers of a group could not agree on an address or a process group."""


class WorkerStateError(RLControllerError, RuntimeError):
    """A worker was called that has not been constructed, or has lost its state."""


class CallError(RLControllerError, RuntimeError):
    """A call on a worker group failed: says which group, method and ranks.

    Attributes:
        group: name of the group.
        method: name of the method.
        ranks: the ranks that failed.
        cause: what the first of them raised, if it raised.
    """

    def __init__(
        self,
        message: str,
        group: str = "",
        method: str = "",
        ranks: Sequence[int] = (),
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message)
        self.group, self.method, self.ranks, self.cause = group, method, tuple(ranks), cause

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.group, self.method, self.ranks, self.cause))


class WorkerMethodError(CallError):
    """A method raised on a worker. The message ends with the worker's traceback."""


class WorkerDiedError(CallError):
    """A worker process, or its node, died during a call or before it. The group must be rebuilt."""


class ObjectLostError(CallError):
    """A result was lost with the node that held it. Make it again."""


class CallTimeoutError(CallError, TimeoutError):
    """A blocking call exceeded the group's time-out; `ranks` were still running."""
