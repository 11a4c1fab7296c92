"""A class with the arguments to construct it later, on another machine."""

from __future__ import annotations

from typing import Any


class ClassWithInitArgs:
    """A class and its constructor's arguments."""

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        self.cls = cls
        self.args = args
        self.kwargs = kwargs

    @property
    def worker_class(self) -> type:
        """The plain class, also where `cls` was decorated by `@ray.remote`."""
        plain: type = getattr(self.cls, "__ray_actor_class__", self.cls)
        return plain

    def __call__(self) -> Any:
        """Construct an object in this process."""
        return self.worker_class(*self.args, **self.kwargs)


class RayClassWithInitArgs(ClassWithInitArgs):
    """The same for a Ray actor: also holds the actor's options.

    `cls` is a plain class or one already decorated by `@ray.remote`, whose options are kept.
    """

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(cls, *args, **kwargs)
        self.options: dict[str, Any] = dict(getattr(cls, "_default_options", None) or {})
        self.resources: dict[str, float] = dict(self.options.pop("resources", None) or {})

    def update_options(self, options: dict[str, Any]) -> None:
        """Set Ray actor options, such as `{"max_concurrency": 4}`; they win over the group's own."""
        given = dict(options)
        self.resources |= given.pop("resources", None) or {}
        self.options |= given

    def set_additional_resource(self, resources: dict[str, float]) -> None:
        """Ask for custom resources, for each worker."""
        self.resources |= resources
