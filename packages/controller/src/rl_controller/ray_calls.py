"""Waiting for calls on Ray actors, and saying what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError
from ray.exceptions import ObjectLostError as RayObjectLostError

from rl_controller.errors import (
    CallError,
    CallTimeoutError,
    ObjectLostError,
    WorkerDiedError,
    WorkerMethodError,
)

if TYPE_CHECKING:
    from ray import ObjectRef

_FAST_WAIT_S = 1.0


@dataclass(frozen=True)
class CallContext:
    """Which call references belong to: what an error must name.

    Attributes:
        place: for each rank, what to call the place it runs in.
        timeout_s: how long a wait may take; None: for ever.
        grace_s: after a failure, how long to wait for the other ranks.
        release: called with the ranks that failed if others are still running after the grace.
    """

    group: str
    method: str
    place: Callable[[int], str]
    timeout_s: float | None
    grace_s: float
    release: Callable[[Sequence[int]], None] = field(repr=False)

    def gather(
        self, ranks: Sequence[int], refs: Sequence[ObjectRef[Any]], timeout: float | None = None
    ) -> list[Any]:
        """The values; the first failure is raised without waiting for ranks that may never finish."""
        limit = self.timeout_s if timeout is None else timeout
        fast = _FAST_WAIT_S if limit is None else min(limit, _FAST_WAIT_S)
        try:
            values: list[Any] = ray.get(list(refs), timeout=fast)
        except GetTimeoutError:
            return self._gather_slowly(ranks, refs, None if limit is None else limit - fast)
        except RayError:
            return self._gather_slowly(ranks, refs, None if limit is None else limit)
        return values

    def _gather_slowly(
        self, ranks: Sequence[int], refs: Sequence[ObjectRef[Any]], limit: float | None
    ) -> list[Any]:
        """Watch every reference, so that one rank's failure is seen while another is stuck."""
        deadline = None if limit is None else time.monotonic() + limit
        pending = list(dict.fromkeys(refs))
        values: dict[Any, Any] = {}  # each is read once: reading costs as much as it holds
        while pending:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, pending = ray.wait(pending, num_returns=1, timeout=remaining, fetch_local=False)
            failed: dict[ObjectRef[Any], Exception] = {}
            for ref in ready:
                try:
                    values[ref] = ray.get(ref)
                except RayError as error:
                    failed[ref] = error
            if failed:
                self._raise(ranks, refs, failed, pending)
            if not ready and pending:
                stuck = [rank for rank, ref in zip(ranks, refs, strict=True) if ref in pending]
                raise CallTimeoutError(
                    f"method {self.method!r} of group {self.group!r}: {_places(self, stuck)} did not finish "
                    f"in time. They are still running; shut the group down or wait for them.",
                    self.group,
                    self.method,
                    stuck,
                )
        return [values[ref] for ref in refs]

    def _raise(
        self,
        ranks: Sequence[int],
        refs: Sequence[ObjectRef[Any]],
        failed: dict[ObjectRef[Any], Exception],
        pending: list[ObjectRef[Any]],
    ) -> None:
        """Give the other ranks their grace, gather every failure, and raise one error for all."""
        first = next(iter(failed.values()))
        if pending:
            done, pending = ray.wait(
                pending, num_returns=len(pending), timeout=self.grace_s, fetch_local=False
            )
            failed |= {ref: error for ref in done if (error := _failure(ref)) is not None}
        ranks_of = {ref: rank for rank, ref in zip(ranks, refs, strict=True)}
        bad = sorted(ranks_of[ref] for ref in failed)
        note = ""
        if pending:
            self.release(bad)
            stuck = sorted(ranks_of[ref] for ref in pending)
            note = (
                f"\nRanks {stuck} were still running {self.grace_s} s later. If a process group was "
                f"up, the failed ranks have left it, so that the others need not wait; rebuild the group."
            )
        raise self.error(bad, first, note) from _cause(first)

    def error(self, ranks: Sequence[int], error: Exception, note: str = "") -> CallError:
        """The typed error for what Ray raised on some ranks."""
        where = f"method {self.method!r} of group {self.group!r}"
        if isinstance(error, RayActorError | OutOfMemoryError):
            return WorkerDiedError(
                f"{where}: {_places(self, ranks)} died. {error}{note}\nTheir state is lost: rebuild the "
                f"group in its pool with group.rebuild().",
                self.group,
                self.method,
                ranks,
                error,
            )
        if isinstance(error, RayObjectLostError):
            return ObjectLostError(
                f"{where}: a value was lost with its node. {error}{note}",
                self.group,
                self.method,
                ranks,
                error,
            )
        cause = _cause(error)
        return WorkerMethodError(
            f"{where} raised on {_places(self, ranks)}: {type(cause).__name__}: {cause}{note}\n{error}",
            self.group,
            self.method,
            ranks,
            cause,
        )


def _places(context: CallContext, ranks: Sequence[int]) -> str:
    return ", ".join(f"rank {rank} ({context.place(rank)})" for rank in ranks)


def _cause(error: BaseException) -> BaseException:
    return getattr(error, "cause", None) or error


def _failure(ref: ObjectRef[Any]) -> Exception | None:
    """What a finished call raised, or None."""
    try:
        ray.get(ref)
    except RayError as error:
        return error
    return None


class CallReferences(list[Any]):
    """Object references of one call, one per worker; `.get()` waits and raises as a blocking call does."""

    def __init__(self, context: CallContext, ranks: Sequence[int], refs: Sequence[Any]) -> None:
        super().__init__(refs)
        self._context, self._ranks = context, list(ranks)

    def get(self, timeout: float | None = None) -> list[Any]:
        """The results in rank order."""
        return self._context.gather(self._ranks, list(self), timeout)
