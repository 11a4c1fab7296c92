"""Named spans and memory marks in torch's profiler, on chosen steps and ranks, as traces for Perfetto."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, ParamSpec, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
_MARK = "memory_mark/"


@dataclass
class ProfilerConfig:
    """What is profiled."""

    steps: list[int] = field(default_factory=list)
    """Training steps to profile."""
    ranks: list[int] = field(default_factory=lambda: [0])
    """Ranks that write a trace; empty: all."""
    save_path: str = "profile"
    """Folder of the traces: open them in https://ui.perfetto.dev."""


class DistProfiler:
    """The profiler of this process: at most one runs, whatever roles the process has.

    Between :meth:`start` and :meth:`stop`, methods decorated with :meth:`annotate` show up as spans, with the
    process's memory as a counter. Otherwise the decorator costs one comparison.
    """

    _active: ClassVar[DistProfiler | None] = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks: list[dict[str, float]] = []
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)

    @classmethod
    def start(cls, config: ProfilerConfig, rank: int, step: int) -> bool:
        """Start if the step and the rank are chosen and nothing runs yet; whether it runs now."""
        if cls._active is None and step in config.steps and (not config.ranks or rank in config.ranks):
            cls._active = cls(Path(config.save_path) / f"step{step}-rank{rank}.json")
            cls._active._profile.start()
        return cls._active is not None

    @classmethod
    def stop(cls) -> str:
        """Stop and write the trace; its path, or "" if nothing ran."""
        running, cls._active = cls._active, None
        if running is None:
            return ""
        running._profile.stop()
        running.path.parent.mkdir(parents=True, exist_ok=True)
        running._profile.export_chrome_trace(str(running.path))
        _turn_marks_into_counters(running.path, running.marks)
        logger.info("wrote %s", running.path)
        return str(running.path)

    @classmethod
    @contextmanager
    def span(cls, name: str) -> Iterator[None]:
        """A named span with a memory mark at either end."""
        running = cls._active
        if running is None:
            yield
            return
        with record_function(name):
            running._mark()
            try:
                yield
            finally:
                running._mark()

    @classmethod
    def annotate(cls, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: a call of the function is a span of this name (default: its qualified name)."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            label = name or function.__qualname__

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                if cls._active is None:
                    return function(*args, **kwargs)
                with cls.span(label):
                    return function(*args, **kwargs)

            return call

        return decorate

    def _mark(self) -> None:
        """An empty span whose place in the trace becomes the counter's time stamp."""
        with record_function(f"{_MARK}{len(self.marks)}"):
            self.marks.append(memory_in_use())


def memory_in_use() -> dict[str, float]:
    """Megabytes of this process: resident, and allocated on its GPU where it has one."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    found = {"resident_mb": pages * 4096 / 2**20}
    if torch.cuda.is_available():
        found["cuda_allocated_mb"] = torch.cuda.memory_allocated() / 2**20
    return found


def _turn_marks_into_counters(path: Path, marks: list[dict[str, float]]) -> None:
    trace = json.loads(path.read_text())
    kept = []
    for event in trace["traceEvents"]:
        name = str(event.get("name", ""))
        if not name.startswith(_MARK):
            kept.append(event)
        elif event.get("ph") == "X" and event.get("cat") == "user_annotation":
            values = marks[int(name.removeprefix(_MARK))]
            kept.append({"name": "memory", "ph": "C", "ts": event["ts"], "pid": event["pid"], "args": values})
    trace["traceEvents"] = kept
    path.write_text(json.dumps(trace))
