"""What a run says while it goes on: events to who watches, numbers to the trackers, a report at the end."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..config.loading import to_yaml
from ..config.tree import PPOConfig
from ..state.files import replace_text, write_json
from .about import about
from .report import write_report
from .tracking import Tracking

logger = logging.getLogger(__name__)

Event = Mapping[str, Any]
"""What `Display.show` takes: a `kind`, and what belongs to it."""


class Recorder:
    """The one place through which a run speaks.

    Args:
        config: the whole tree; trackers keep it.
        progress: called with each event.
    """

    def __init__(self, config: PPOConfig, progress: Callable[[Event], None]) -> None:
        self.config, self.progress = config, progress
        self.run = Path(config.trainer.default_local_dir)
        self.tracking: Tracking | None = None
        self.told: set[str] = set()

    def open(self, step: int, total: int) -> None:
        """Begin to write: the configuration, and the trackers of a run that stands after `step`.

        Args:
            step: lines of later steps are dropped; -1: the run begins.
            total: steps of the whole run.
        """
        trainer = self.config.trainer
        self.run.mkdir(parents=True, exist_ok=True)
        replace_text(self.run / "config.yaml", to_yaml(self.config))
        names = (trainer.project_name, trainer.experiment_name)
        settings = dataclasses.asdict(self.config)
        self.tracking = Tracking(self.run, trainer.logger, *names, settings, step)
        write_json(self.run / "about.json", about(self.config))
        self.progress({"kind": "begin", "step": max(step, 0), "total": total})

    def stage(self, text: str) -> None:
        """Tell what is being done."""
        self.progress({"kind": "stage", "text": text})

    def once(self, topic: str, text: str) -> None:
        """Tell of something that may come again in every step, the first time."""
        if topic not in self.told:
            self.told.add(topic)
            self.stage(text)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Give the trackers the numbers of a step; without open trackers (evaluation) nothing is kept."""
        if self.tracking is not None:
            self.tracking.log(metrics, step)

    def step(self, metrics: Mapping[str, float], step: int, total: int) -> None:
        """Log a finished step and tell of it."""
        self.log(metrics, step)
        self.progress({"kind": "step", "step": step, "total": total, "metrics": dict(metrics)})

    def validation(self, metrics: Mapping[str, float], step: int) -> None:
        """Tell the scores of a validation."""
        self.progress({"kind": "validation", "step": step, "metrics": dict(metrics)})

    def close(self, report: bool) -> None:
        """Close the trackers, and draw the report if the run has something to show."""
        if self.tracking is not None:
            self.tracking.close()
        if not report or not self.config.trainer.report:
            return
        if importlib.util.find_spec("plotly") is None:
            logger.warning("no report.html: it needs a package, pip install 'rl-trainer[report]'")
        else:
            write_report([self.run])
