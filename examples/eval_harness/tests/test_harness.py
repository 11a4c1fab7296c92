from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch
from eval_harness import Harness, ScoreFn

from rl_controller import WorkerMethodError
from rl_protocol import DataProto


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    started = not ray.is_initialized()
    if started:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        ray.init(
            "local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20
        )
    yield
    if started:
        ray.shutdown()


def data(rows: int) -> DataProto:
    subsets = ["even" if row % 2 == 0 else "odd" for row in range(rows)]
    return DataProto.from_dict({"x": torch.arange(float(rows))}, {"subset": subsets})


@pytest.mark.parametrize("local", [True, False])
def test_means_per_subset(local: bool) -> None:
    harness = Harness(load_model=lambda: lambda rows: rows.batch["x"] * 2, local=local)
    report = harness.evaluate(data(5))
    assert report.means == {"even": 4.0, "odd": 4.0} and report.n_rows == 5 and report.restarts == 0
    assert len(report.seconds) == (1 if local else 2)
    with pytest.raises(WorkerMethodError, match="'score'"):
        harness.evaluate(data(5).rename("x", "y"))
    harness.close()


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    flag = str(tmp_path / "died")

    def load() -> ScoreFn:
        def score(rows: DataProto) -> torch.Tensor:
            if not os.path.exists(flag):
                open(flag, "w").close()
                os._exit(1)
            return rows.batch["x"]

        return score

    harness = Harness(load_model=load)
    report = harness.evaluate(data(4))
    assert report.restarts == 1 and report.means == {"even": 1.0, "odd": 2.0}
    harness.close()
