"""Metrics of micro-batches and ranks, merged exactly into those of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist

from rl_algos import Metric, merge_metrics
from rl_workers.engine.layout import Layout


def reduce_metrics(parts: Sequence[Mapping[str, Metric]], layout: Layout) -> dict[str, float]:
    """Merge the micro-batches of all ranks whose results count; every rank gets the same numbers.

    Metrics that covered nothing (a mean or an extreme of no token) are left out.
    """
    mine = merge_metrics(parts if layout.is_collect else ())
    plain = {name: Metric(m.reduction, m.total.cpu(), m.count.cpu()) for name, m in mine.items()}
    gathered: list[dict[str, Metric]] = [{} for _ in range(layout.world_size)]
    dist.all_gather_object(gathered, plain)
    return {
        name: float(metric.value())
        for name, metric in merge_metrics(gathered).items()
        if metric.reduction == "sum" or float(metric.count) > 0
    }
