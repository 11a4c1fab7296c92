"""The harness: the driver's program."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from eval_harness.worker import ScoreFn, Scorer
from rl_controller import (
    LocalWorkerGroup,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    WorkerDiedError,
    WorkerGroup,
)
from rl_protocol import DataProto, DataProtoFuture

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What an evaluation found."""

    means: dict[str, float]
    """Mean score of each subset."""
    n_rows: int
    restarts: int
    """How often the workers had to be started anew."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Time each rank spent scoring."""


class Harness:
    """Scores data sets on a group of workers."""

    def __init__(
        self,
        load_model: Callable[[], ScoreFn],
        n_workers: int = 2,
        local: bool = False,
        max_restarts: int = 1,
    ) -> None:
        init = RayClassWithInitArgs(Scorer, load_model)
        self.max_restarts = max_restarts
        self.group: WorkerGroup = (
            LocalWorkerGroup(init) if local else RayWorkerGroup(RayResourcePool([n_workers]), init)
        )

    def evaluate(self, rows: DataProto) -> Report:
        """Score every row once. A worker that dies is replaced and the data set scored again."""
        for restarts in range(self.max_restarts + 1):
            try:
                return self._evaluate(rows, restarts)
            except WorkerDiedError as error:
                if restarts == self.max_restarts or not isinstance(self.group, RayWorkerGroup):
                    raise
                logger.warning("restarting the scorers: %s", error)
                self.group = self.group.rebuild()
        raise ValueError(f"max_restarts must not be negative, got {self.max_restarts}")

    def _evaluate(self, rows: DataProto, restarts: int) -> Report:
        scores: DataProtoFuture = self.group.score(rows)
        scored = scores.union(rows.select([], meta_info_keys=[]))
        shares: list[dict[str, tuple[float, int]]] = self.group.summarise(scored)
        sums: dict[str, tuple[float, int]] = {}
        for share in shares:
            for subset, (total, count) in share.items():
                before = sums.get(subset, (0.0, 0))
                sums[subset] = (before[0] + total, before[1] + count)
        means = {subset: total / count for subset, (total, count) in sums.items()}
        seconds = {entry["rank"]: entry["s"] for entry in scored.meta_info["timing"]}
        return Report(means, sum(count for _, count in sums.values()), restarts, seconds)

    def close(self) -> None:
        """End the workers."""
        self.group.shutdown()
