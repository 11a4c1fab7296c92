"""Driver programs by name, and the actor that holds one.

Naming a program instead of importing it saves the command seconds: its libraries are needed where it runs, in
another process, which imports them anyway.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config.tree import PPOConfig
    from ..state.run_state import FitResult
    from ..view.recorder import Event
    from .task_runner import TaskRunner

TRAINING = "rl_trainer.run.task_runner:TaskRunner"
EVALUATION = "rl_trainer.run.jobs:EvaluationRunner"
EXPORT = "rl_trainer.run.jobs:ExportRunner"


def find_runner(runner: type[TaskRunner] | str) -> type[TaskRunner]:
    """The class, imported if it is given as `package.module:name`."""
    if not isinstance(runner, str):
        return runner
    module, _, name = runner.partition(":")
    found: type[TaskRunner] = getattr(importlib.import_module(module), name)
    return found


class Driver:
    """A driver program in a process of its own; see `TaskRunner` for the methods."""

    def __init__(self, runner: type[TaskRunner] | str) -> None:
        self.runner = find_runner(runner)()

    def run(self, config: PPOConfig) -> FitResult:
        """Build everything, train, clean up."""
        return self.runner.run(config)

    def next_events(self, timeout_s: float) -> list[Event]:
        """Events since the last call; waits up to `timeout_s` for the first."""
        return self.runner.next_events(timeout_s)
