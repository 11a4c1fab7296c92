"""The loss and the gradient do not depend on ranks, micro-batches, packing or prompt sharing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from workers_models import make_batch
from workers_programs import train_steps
from workers_ranks import run_ranks

BATCH = make_batch(groups=3, n=3, prompt=9, response=7, seed=3)


@pytest.fixture(scope="module")
def reference(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_ranks(tmp_path_factory.mktemp("one"), 1, train_steps, tiny_model, BATCH, "padded", 4096)[0]


def close(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(wanted["losses"], abs=1e-6)
    assert set(found["grads"]) == set(wanted["grads"])
    for name, grad in wanted["grads"].items():
        assert np.abs(found["grads"][name] - grad).max() <= 1e-5 * np.abs(grad).max() + 1e-9, name


@pytest.mark.parametrize("form", ["padded", "packed", "shared"])
@pytest.mark.parametrize(("world", "budget"), [(1, 4096), (1, 24), (2, 40), (4, 24)])
def test_one_step(
    tiny_model: str, tmp_path: Path, reference: Any, form: str, world: int, budget: int
) -> None:
    for found in run_ranks(tmp_path, world, train_steps, tiny_model, BATCH, form, budget):
        close(found, reference)


def test_ranks_with_unequal_work_take_part_in_the_same_collectives(tiny_model: str, tmp_path: Path) -> None:
    batch = {k: v.clone() for k, v in make_batch(groups=8, n=1, prompt=9, response=7, seed=4).items()}
    batch["response_mask"][5:] = 0  # the second rank has one row to train, the first has four
    whole = run_ranks(tmp_path, 1, train_steps, tiny_model, batch, "packed", 4096)[0]
    parts = run_ranks(tmp_path, 2, train_steps, tiny_model, batch, "packed", 16)
    assert parts[0]["count"] == parts[1]["count"] >= 2  # alone, the second would need one
    for found in parts:
        close(found, whole)
