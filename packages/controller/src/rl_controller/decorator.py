"""`@register`: how a worker method says it is to be called from the controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from rl_controller.dispatch import Dispatch, DispatchMode
from rl_controller.errors import DispatchError

MAGIC_ATTR = "_rl_controller_registered"

F = TypeVar("F", bound=Callable[..., Any])


class Execute(Enum):
    """Which workers run a call."""

    ALL = "all"
    RANK_ZERO = "rank_zero"


@dataclass(frozen=True)
class Registration:
    """What `@register` declares about a method."""

    dispatch: DispatchMode
    execute: Execute
    blocking: bool
    read_only: bool


def register(
    dispatch_mode: DispatchMode | Mapping[str, Any] = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
    read_only: bool = False,
) -> Callable[[F], F]:
    """Mark a worker method for the controller. The method itself is left as it is.

    Args:
        dispatch_mode: how arguments are spread and results gathered; a `Dispatch` member, what
            `make_nd_compute_dataproto_dispatch_fn` returns, or `{"dispatch_fn": …, "collect_fn": …}`.
        execute_mode: on all ranks, or on rank 0 only.
        blocking: False returns references (a `DataProtoFuture` where the mode stacks batches).
        read_only: promises that the method never writes to what it receives: it is then given the object
            store's memory without a copy. Breaking the promise corrupts the data of other readers.
    """
    mode = _mode_of(dispatch_mode)
    if not isinstance(execute_mode, Execute):
        raise DispatchError(f"execute_mode must be Execute.ALL or Execute.RANK_ZERO, got {execute_mode!r}.")

    def mark(method: F) -> F:
        setattr(method, MAGIC_ATTR, Registration(mode, execute_mode, blocking, read_only))
        return method

    return mark


def _mode_of(given: DispatchMode | Mapping[str, Any]) -> DispatchMode:
    if isinstance(given, DispatchMode):
        return given
    if isinstance(given, Mapping) and set(given) == {"dispatch_fn", "collect_fn"}:
        return DispatchMode("custom", given["dispatch_fn"], given["collect_fn"])
    raise DispatchError(
        f"dispatch_mode must be a Dispatch member or a dict of dispatch_fn and collect_fn, got {given!r}."
    )


def registered_methods(cls: type) -> dict[str, Registration]:
    """Methods of a class that are registered, by name; an override inherits its base's registration."""
    found: dict[str, Registration] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            registration = getattr(member, MAGIC_ATTR, None)
            if isinstance(registration, Registration):
                found[name] = registration
    return {name: registration for name, registration in found.items() if callable(getattr(cls, name, None))}
