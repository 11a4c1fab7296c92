"""The actor's steps: equal on any number of ranks, with every term of the loss, from any checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from workers_models import make_batch
from workers_programs import actor_config, moved_by_nothing, run_actor
from workers_ranks import run_ranks

BATCH = make_batch(groups=3, n=3, prompt=9, response=7, seed=5)


def test_twenty_steps_on_two_ranks_equal_twenty_on_one(tiny_model: str, tmp_path: Path) -> None:
    config = actor_config(tiny_model, lr=0.05, budget=64)
    one = run_ranks(tmp_path, 1, run_actor, config, BATCH, 20)[0]
    two = run_ranks(tmp_path, 2, run_actor, config, BATCH, 20)
    for found in two:
        for mine, theirs in zip(found["metrics"], one["metrics"], strict=True):
            assert mine["actor/pg_loss"] == pytest.approx(theirs["actor/pg_loss"], abs=1e-5)
            assert mine["actor/grad_norm"] == pytest.approx(theirs["actor/grad_norm"], rel=1e-3)
    after = np.concatenate([found["after"] for found in two])
    assert np.abs(after - one["after"]).max() <= 1e-4 * max(1.0, np.abs(one["after"]).max())
    assert np.abs(one["after"] - one["before"]).max() > 0.1  # the steps did something


@pytest.mark.parametrize("what", ["advantages", "row_weights", "response_mask"])
def test_a_step_that_learns_from_nothing_leaves_the_weights(
    tiny_model: str, tmp_path: Path, what: str
) -> None:
    config = actor_config(tiny_model, lr=0.05, budget=64)
    config.actor.optim.name = "adamw"  # its momentum of the first step would move them
    learnt, nothing = run_ranks(tmp_path, 1, moved_by_nothing, config, BATCH, what)[0]
    assert learnt > 0.01 and nothing == 0.0
