"""The worker: holds a model and scores the rows it is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import torch

from rl_controller import Dispatch, Worker, register
from rl_protocol import DataProto

ScoreFn: TypeAlias = Callable[[DataProto], torch.Tensor]


class Scorer(Worker):
    """One model per worker, loaded where it runs."""

    def __init__(self, load_model: Callable[[], ScoreFn]) -> None:
        self.score_fn = load_model()

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False, read_only=True)
    def score(self, rows: DataProto) -> DataProto:
        """Scores `[B]` float32 of the rows; how long it took is in `meta_info["timing"]`."""
        begin = time.perf_counter()
        scores = self.score_fn(rows).to(torch.float32)
        if scores.shape != (len(rows),):
            raise ValueError(f"the model gave scores of shape {tuple(scores.shape)} for {len(rows)} rows")
        seconds = time.perf_counter() - begin
        return DataProto.from_dict({"score": scores}, meta_info={"timing": {"rank": self.rank, "s": seconds}})

    @register(Dispatch.DP_COMPUTE_METRIC, read_only=True)
    def summarise(self, scored: DataProto) -> dict[str, tuple[float, int]]:
        """Sum and count of the scores of each subset among this worker's rows."""
        sums: dict[str, tuple[float, int]] = {}
        for row in scored:
            subset = str(row.non_tensor_batch.get("subset", "all"))
            total, count = sums.get(subset, (0.0, 0))
            sums[subset] = (total + float(row.batch["score"]) if row.batch is not None else total, count + 1)
        return sums
