"""Several roles in one process per rank: one process group, one device, several classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rl_controller.decorator import MAGIC_ATTR, registered_methods
from rl_controller.errors import DispatchError
from rl_controller.init_args import ClassWithInitArgs, RayClassWithInitArgs
from rl_controller.worker import Worker


class FusedWorker(RayClassWithInitArgs):
    """`FusedWorker({"actor": RayClassWithInitArgs(Actor), …})`: use it as `ray_cls_with_init`.

    Each worker of the group then holds one object per role. The group has the methods `actor_<method>`;
    `group.spawn({"actor", …})` gives one group per role with the methods under their own names.
    """

    def __init__(self, members: Mapping[str, ClassWithInitArgs]) -> None:
        if not members:
            raise DispatchError("FusedWorker needs at least one role.")
        super().__init__(fused_class(members))
        self.members = dict(members)
        for member in members.values():
            if isinstance(member, RayClassWithInitArgs):
                self.update_options({**member.options, "resources": member.resources})


def fused_class(members: Mapping[str, ClassWithInitArgs]) -> type[Worker]:
    """The `Worker` class that holds one object per role and forwards `<role>_<method>` to it."""

    class Fused(Worker):
        _rl_role_classes: ClassVar[dict[str, type]] = {
            name: member.worker_class for name, member in members.items()
        }

        def __init__(self) -> None:
            self._rl_roles: dict[str, Any] = {}
            for name, member in members.items():
                self._rl_roles[name] = self._rl_make(member)

        def _rl_make(self, member: ClassWithInitArgs) -> Any:
            role: Any = object.__new__(member.worker_class)
            role._rl_rank_info = self.rank_info  # known before its constructor runs
            role.__init__(*member.args, **member.kwargs)
            return role

    Fused.__name__ = Fused.__qualname__ = "Fused_" + "_".join(members)
    for name, member in members.items():
        for method, registration in registered_methods(member.worker_class).items():
            full = f"{name}_{method}"
            if hasattr(Fused, full):
                raise DispatchError(
                    f"two roles give the fused worker a method {full!r}; rename one of the roles."
                )
            forward = _forward(name, method)
            setattr(forward, MAGIC_ATTR, registration)
            setattr(Fused, full, forward)
    return Fused


def _forward(role: str, method: str) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._rl_roles[role], method)(*args, **kwargs)

    forward.__name__ = f"{role}_{method}"
    return forward


def create_colocated_worker_cls(class_dict: Mapping[str, ClassWithInitArgs]) -> RayClassWithInitArgs:
    """Deprecated name of `FusedWorker`; its `cls` is the Ray actor class of the fused `Worker`."""
    warnings.warn(
        "create_colocated_worker_cls is now FusedWorker(class_dict).", DeprecationWarning, stacklevel=2
    )
    import ray

    fused = FusedWorker(class_dict)
    fused.cls = ray.remote(fused.cls)
    return fused
