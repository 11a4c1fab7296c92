"""Batches that are being generated while others train."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_protocol import DataProto, DataProtoFuture, Store


@dataclass(frozen=True)
class Generation:
    """One batch on its way.

    Attributes:
        prompts: what it is sampled from, one row per prompt.
        remote: the rows, where they are made.
        version: training steps that the sampling policy had seen.
    """

    prompts: DataProto
    remote: DataProtoFuture
    version: int


class InFlight:
    """A queue of batches that are generated ahead of their use; with `ahead=0` each is waited for at once.

    Args:
        ahead: batches that are generated before they are wanted.
        start: begins to generate a batch.
    """

    def __init__(self, ahead: int, start: Callable[[DataProto], Generation]) -> None:
        self.ahead, self.start = ahead, start
        self.queue: deque[Generation] = deque()

    def next(self, prompts: Callable[[], DataProto | None]) -> Generation:
        """Start what is missing, then give the oldest; `prompts` gives None where the run needs no more."""
        while len(self.queue) <= self.ahead:
            more = prompts()
            if more is None:
                break
            self.queue.append(self.start(more))
        return self.queue.popleft()

    def save(self, folder: Path) -> None:
        """Wait for what is on its way and keep it: its policy is gone when the run resumes."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, item in enumerate(self.queue):
            item.prompts.save(folder / f"prompts_{number}")
            item.remote.get().save(folder / f"rows_{number}")

    def load(self, folder: Path, versions: Sequence[int], store: Store) -> None:
        """Take up what `save` kept, given the version of each batch."""
        self.queue.clear()
        for number, version in enumerate(versions):
            rows = DataProto.load(folder / f"rows_{number}")
            remote = DataProtoFuture.from_data(rows, store)
            self.queue.append(Generation(DataProto.load(folder / f"prompts_{number}"), remote, version))
