"""The store behind a future of a call: reads results, with the call's errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_controller.ray_calls import CallContext
from rl_protocol import RayStore


class CallStore(RayStore):
    """Ray's object store, for the results of one call."""

    def __init__(self, context: CallContext, ranks: dict[Any, int]) -> None:
        self._context, self._ranks = context, ranks

    def get(self, refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """The values; a `CallError` that names the rank and the method if the call failed."""
        return self._context.gather([self._ranks[ref] for ref in refs], refs, timeout)
