"""What the terminal shows: one live table, or plain lines where the output is not a terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

COLUMNS = {
    "reward": ("critic/score/mean", "{:.3f}"),
    "length": ("response_length/mean", "{:.1f}"),
    "mismatch": ("rollout_corr/k3_kl", "{:.1e}"),
    "entropy": ("actor/entropy", "{:.3f}"),
    "tokens/s": ("perf/throughput", "{:.0f}"),
    "s/step": ("timing_s/step", "{:.1f}"),
}
ROWS = 12


class Display:
    """Shows the events of a run as they come; use it as a context.

    An event is a mapping with `kind`: `stage` (`text`), `step` (`step total metrics`), `validation`
    (`step metrics`).
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.steps: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=ROWS)
        self.validations: list[str] = []
        self.seconds: deque[float] = deque(maxlen=ROWS)
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
        )
        self.task = self.progress.add_task("starting", total=None, left="")
        self.live: Live | None = None
        self.start = time.monotonic()

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.live = Live(self._render(), console=self.console, refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        getattr(self, "_" + event["kind"])(event)
        if self.live is not None:
            self.live.update(self._render())

    def _stage(self, event: Mapping[str, Any]) -> None:
        self.progress.update(self.task, description=event["text"])
        self._line(f"[{time.monotonic() - self.start:6.1f} s] {event['text']}")

    def _step(self, event: Mapping[str, Any]) -> None:
        step, total, metrics = event["step"], event["total"], event["metrics"]
        self.steps.append((step, metrics))
        self.seconds.append(metrics["timing_s/step"])
        left = clock(sum(self.seconds) / len(self.seconds) * (total - step)) + " left"
        self.progress.update(self.task, completed=step, total=total, description="training", left=left)
        cells = "  ".join(f"{name} {text}" for name, text in zip(COLUMNS, self._cells(metrics), strict=True))
        self._line(f"step {step}/{total}  {cells}  {left}")

    def _validation(self, event: Mapping[str, Any]) -> None:
        numbers = ", ".join(f"{key} {value:.3f}" for key, value in sorted(event["metrics"].items()))
        self.validations.append(f"validation after step {event['step']}: {numbers}")
        self._line(self.validations[-1])

    def _line(self, text: str) -> None:
        if self.live is None:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _cells(self, metrics: Mapping[str, float]) -> list[str]:
        return [form.format(metrics[key]) if key in metrics else "-" for key, form in COLUMNS.values()]

    def _render(self) -> Group:
        table = Table("step", *COLUMNS, expand=False)
        for step, metrics in self.steps:
            table.add_row(str(step), *self._cells(metrics))
        return Group(*([table] if self.steps else []), *self.validations[-3:], self.progress)


def clock(seconds: float) -> str:
    """Seconds as `h:mm:ss` or `m:ss`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
