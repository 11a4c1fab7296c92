"""The driver's part of a checkpoint: what the next step depends on beside the models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_algos import AdaptiveKLController, FixedKLController

from ..config.tree import KLControlConfig
from ..config.versions import versions
from ..data.prompt_stream import PromptStream
from ..errors import CheckpointError


@dataclass(frozen=True)
class FitResult:
    """How a run went.

    Attributes:
        steps: training steps done.
        val_before: validation score before the first step; NaN where there was none.
        val_after: the newest validation score.
        training_seconds: time in training steps; validation and saving left out.
        export: folder of the exported model, or empty.
        metrics: of the last step.
    """

    steps: int
    val_before: float
    val_after: float
    training_seconds: float
    export: str
    metrics: dict[str, float]


@dataclass
class RunState:
    """Where a run stands.

    Attributes:
        stream: which training prompts come next.
        kl_ctrl: the coefficient of the KL in the reward.
        global_step: training steps done.
        drawn: batches of prompts drawn; more than steps where batches are in flight or filtered.
        version: steps that changed the policy; fewer than steps after a critic's warm-up.
        training_seconds: time in training steps.
        validations: headline of each validation, by the step that it followed.
    """

    stream: PromptStream
    kl_ctrl: FixedKLController | AdaptiveKLController
    global_step: int = 0
    drawn: int = 0
    version: int = 0
    training_seconds: float = 0.0
    validations: dict[int, float] = field(default_factory=dict)

    def best_of(self, saved: Sequence[int]) -> int:
        """Of steps with a checkpoint and this one, the best validated; -1 where none has a number."""
        valued = {step: self.validations.get(step, math.nan) for step in (*saved, self.global_step)}
        known = [step for step, value in valued.items() if not math.isnan(value)]
        return max(known, key=lambda step: valued[step], default=-1)

    def result(self, metrics: Mapping[str, float], export: str = "") -> FitResult:
        """How the run stands."""
        before = self.validations.get(0, math.nan)
        after = self.validations[max(self.validations)] if self.validations else math.nan
        return FitResult(self.global_step, before, after, self.training_seconds, export, dict(metrics))

    def state_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        parts = {"stream": self.stream.state_dict(), "kl_ctrl": self.kl_ctrl.state_dict()}
        return {**plain, **parts, "versions": versions()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        try:
            validations = {int(step): float(value) for step, value in state["validations"].items()}
            self.stream.load_state_dict(state["stream"])
            self.kl_ctrl.load_state_dict(state["kl_ctrl"])
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"the trainer's state is damaged: {error!r}") from error
        self.validations, self.training_seconds = validations, state["training_seconds"]
        self.global_step, self.drawn, self.version = state["global_step"], state["drawn"], state["version"]


def kl_controller(config: KLControlConfig) -> FixedKLController | AdaptiveKLController:
    """The controller of the KL coefficient in the reward."""
    if config.type == "adaptive":
        return AdaptiveKLController(config.kl_coef, config.target_kl, config.horizon)
    return FixedKLController(config.kl_coef)
