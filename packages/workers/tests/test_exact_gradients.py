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
