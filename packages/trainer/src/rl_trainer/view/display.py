"""What the terminal shows: a line for all that was done, and below them what is being done now."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

COLUMNS = {
    "reward": ("critic/score/mean", "{:.3f}"),
    "length": ("response_length/mean", "{:.1f}"),
    "mismatch": ("rollout_corr/k3_kl", "{:.1e}"),
    "entropy": ("actor/entropy", "{:.3f}"),
    "tokens/s": ("perf/throughput", "{:.0f}"),
    "s/step": ("timing_s/step", "{:.1f}"),
}
HEAD_EVERY = 25
BAR = 30


class Display:
    """Shows the events of a run as they come; use it as a context.

    An event is a mapping with `kind`: `stage` (`text`), `begin` (`step total`), `step` (also `metrics`),
    `validation` (`step metrics`).

    Args:
        console: where to write; None: the terminal.
        plain: lines alone, also on a terminal.
        quiet: nothing at all.
    """

    def __init__(self, console: Console | None = None, plain: bool = False, quiet: bool = False) -> None:
        self.console = console or Console(quiet=quiet)
        self.plain = plain or quiet or not self.console.is_terminal
        self.doing, self.left = "starting", ""
        self.start = self.since = time.monotonic()
        self.steps: tuple[int, int] | None = None  # done, and of how many
        self.counted_from: tuple[int, float] | None = None  # a step, and the time at its end
        self.rows = 0
        self.live: Live | None = None
        self.spinner = Spinner("dots")

    def __enter__(self) -> Display:
        if not self.plain:
            self.live = Live(
                console=self.console, get_renderable=self._now, refresh_per_second=4, transient=True
            )
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def show(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        getattr(self, "_" + event["kind"])(event)

    def _stage(self, event: Mapping[str, Any]) -> None:
        self._do(event["text"])
        self._line(f"[{time.monotonic() - self.start:6.1f} s] {event['text']}")

    def _begin(self, event: Mapping[str, Any]) -> None:
        self.steps = event["step"], event["total"]
        self.counted_from = event["step"], time.monotonic()
        self._train()

    def _step(self, event: Mapping[str, Any]) -> None:
        step, total, metrics = event["step"], event["total"], event["metrics"]
        self.steps = step, total
        self.left = self._estimate(step, total)
        if self.rows % HEAD_EVERY == 0:
            self._line(_row(f"step/{total}", COLUMNS) + "  left")
        self.rows += 1
        self._line(_row(str(step), self._cells(metrics)) + f"  {self.left}")
        self._train()

    def _validation(self, event: Mapping[str, Any]) -> None:
        numbers = ", ".join(f"{key} {value:.3f}" for key, value in sorted(event["metrics"].items()))
        self._line(f"validation after step {event['step']}: {numbers}")
        if event["step"] == 0:
            self.counted_from = 0, time.monotonic()  # it comes once, and is no measure for what follows
        self._train()

    def _estimate(self, step: int, total: int) -> str:
        """Time left, by all that the steps so far took, validation and saving included."""
        if self.counted_from is None:
            self.counted_from = step, time.monotonic()
        first, then = self.counted_from
        if step == first:
            return "?"
        return clock((time.monotonic() - then) / (step - first) * (total - step))

    def _train(self) -> None:
        if self.steps is not None and self.steps[0] < self.steps[1]:
            self._do(f"training, step {self.steps[0] + 1} of {self.steps[1]}")

    def _do(self, text: str) -> None:
        self.doing, self.since = text, time.monotonic()

    def _line(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _cells(self, metrics: Mapping[str, float]) -> list[str]:
        return [form.format(metrics[key]) if key in metrics else "-" for key, form in COLUMNS.values()]

    def _now(self) -> Table:
        """The last line: what is being done, for how long, and how far the run is."""
        line = Table.grid(padding=(0, 1))
        done, total = self.steps or (0, 0)
        bar: list[RenderableType] = (
            [ProgressBar(total, done, width=BAR), f"{done}/{total}"] if self.steps else []
        )
        left = [f"{self.left} left"] if self.left else []
        line.add_row(self.spinner, self.doing, clock(time.monotonic() - self.since), *bar, *left)
        return line


def _row(first: str, cells: Any) -> str:
    return f"{first:>9}" + "".join(f"{cell:>10}" for cell in cells)


def clock(seconds: float) -> str:
    """Seconds as `h:mm:ss` or `m:ss`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
