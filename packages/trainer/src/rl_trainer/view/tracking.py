"""Where a run's numbers go: always `metrics.jsonl`, and the trackers that were chosen."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..state.files import replace_text

logger = logging.getLogger(__name__)


class MetricsFile:
    """`metrics.jsonl`: one line per step, each step once.

    Args:
        path: the file.
        resume_step: lines of later steps (of a run that died after its last checkpoint) are dropped,
            as those steps are done again; -1: the run begins.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        lines = {line["step"]: line for line in read_metrics(path) if line["step"] <= resume_step}
        replace_text(path, "".join(json.dumps(line) + "\n" for line in lines.values()))
        self.path = path

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Append one line and flush it to disk; a number that is not finite, which JSON lacks, is null."""
        numbers = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **numbers}, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Nothing is held open."""


class TensorBoard:
    """Scalars for TensorBoard under `<run>/tensorboard`; steps that are done again replace the old ones."""

    def __init__(self, folder: Path, resume_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder), purge_step=resume_step + 1)  # type: ignore[no-untyped-call,unused-ignore]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One scalar per key."""
        for key, value in metrics.items():
            self.writer.add_scalar(key, value, step)

    def close(self) -> None:
        """Flush."""
        self.writer.close()


class WandB:
    """A Weights & Biases run; a run that is resumed goes on in it."""

    def __init__(self, project: str, name: str, folder: Path, config: dict[str, Any]) -> None:
        import wandb

        known = folder / "wandb_id"
        if not known.is_file():
            replace_text(known, uuid.uuid4().hex[:12])
        self.run: Any = wandb.init(
            id=known.read_text(), project=project, name=name, dir=str(folder), config=config, resume="allow"
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One history row."""
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}


def check_trackers(names: list[str]) -> None:
    """Raise a `ConfigError` for a tracker that does not exist or is not installed."""
    for name in names:
        if name not in PACKAGES:
            raise ConfigError(f"trainer.logger holds {name!r}; trackers: {', '.join(PACKAGES)}")
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise ConfigError(f"trainer.logger={name} needs a package: pip install {PACKAGES[name]}")


class Tracking:
    """All sinks of a run."""

    def __init__(
        self,
        run: Path,
        names: list[str],
        project: str,
        experiment: str,
        config: dict[str, Any],
        resume_step: int,
    ) -> None:
        makers: dict[str, Callable[[], TensorBoard | WandB]] = {
            "tensorboard": lambda: TensorBoard(run / "tensorboard", resume_step),
            "wandb": lambda: WandB(project, experiment, run, config),
        }
        self.sinks: list[MetricsFile | TensorBoard | WandB] = [
            MetricsFile(run / "metrics.jsonl", resume_step)
        ]
        self.sinks += [makers[name]() for name in names]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send one step's numbers to every sink."""
        for sink in self.sinks:
            sink.log(metrics, step)

    def close(self) -> None:
        """Close every sink."""
        for sink in self.sinks:
            sink.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`, each of which has a `step`; see `read_json_lines`."""
    return [line for line in read_json_lines(path) if isinstance(line.get("step"), int)]


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Objects of a file that may not exist; a line that is torn or damaged is left out, and told of.

    A line ends at a newline alone: text in it may hold U+0085 or U+2028, at which `str.splitlines` cuts.
    """
    found, damaged = [], 0
    for text in path.read_bytes().split(b"\n")[:-1] if path.is_file() else []:
        try:
            found.append(dict(json.loads(text)))
        except (ValueError, TypeError, RecursionError):
            damaged += 1
    if damaged:
        logger.warning("%s: %d lines can't be read and are left out", path, damaged)
    return found
