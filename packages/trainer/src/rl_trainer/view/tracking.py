"""Where a run's numbers go: always `metrics.jsonl`, and the trackers that were chosen."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..state.files import replace_text


class MetricsFile:
    """`metrics.jsonl`: one line per step, each step once.

    Args:
        path: the file.
        resume_step: lines of later steps (of a run that died after its last checkpoint) are dropped,
            as those steps are done again.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        kept = [line for line in read_lines(path) if json.loads(line)["step"] <= resume_step]
        replace_text(path, "".join(kept))
        self.path = path

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Append one line; a number that is not finite, which JSON lacks, is null."""
        numbers = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **numbers}, allow_nan=False) + "\n")

    def close(self) -> None:
        """Nothing is held open."""


class TensorBoard:
    """Scalars for TensorBoard under `<run>/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder))  # type: ignore[no-untyped-call,unused-ignore]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One scalar per key."""
        for key, value in metrics.items():
            self.writer.add_scalar(key, value, step)

    def close(self) -> None:
        """Flush."""
        self.writer.close()


class WandB:
    """A Weights & Biases run."""

    def __init__(self, project: str, name: str, folder: Path, config: dict[str, Any]) -> None:
        import wandb

        self.run: Any = wandb.init(project=project, name=name, dir=str(folder), config=config, resume="allow")

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
            "tensorboard": lambda: TensorBoard(run / "tensorboard"),
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


def read_lines(path: Path) -> list[str]:
    """Complete lines of a file that may not exist; a torn last line is left out."""
    if not path.is_file():
        return []
    return [
        line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")
    ]
