from __future__ import annotations

import torch

from rl_controller import RayWorkerGroup
from rl_protocol import DataProto, DataProtoFuture, transfer_count

WIDTH = 25_000
BATCH_BYTES = 5 * WIDTH * 4


def test_a_chain_of_calls_moves_rows_between_workers_only(pair: RayWorkerGroup) -> None:
    before, workers_before = transfer_count(), pair.transfer_counts()
    batch: DataProtoFuture = pair.grow_later(DataProto.from_dict({"seed": torch.arange(5)}), WIDTH)
    for number in range(3):
        batch = pair.tag_later(batch, "y").union(batch).select(["y"]).rename("y", "x")
        assert len(batch) == 5 and batch.meta_info["metrics"] == {"rows": [3, 2]}, number
    counts = pair.count(batch)
    driver = transfer_count() - before
    assert [count["rows"] for count in counts] == [3, 2]
    assert driver.total < 0.02 * BATCH_BYTES
    moved = [after - start for after, start in zip(pair.transfer_counts(), workers_before, strict=True)]
    # worker i reads its own rows and nothing else: four results sent, four read
    for worker, rows in zip(moved, (3, 2), strict=True):
        assert worker.sent < 4.01 * rows * WIDTH * 4 and worker.received < 4.01 * rows * WIDTH * 4


def test_what_is_fetched_is_what_is_selected(pair: RayWorkerGroup) -> None:
    wide: DataProtoFuture = pair.grow_later(DataProto.from_dict({"seed": torch.arange(5)}), WIDTH)
    narrow: DataProtoFuture = pair.tag_later(DataProto.from_dict({"x": torch.arange(5.0)}), "y")
    both = narrow.union(wide)
    before = transfer_count()
    assert both.select(["y"]).get().batch["y"].tolist() == [1, 2, 3, 4, 5]
    assert (transfer_count() - before).total < 1_000
