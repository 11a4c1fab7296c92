"""Rows stay with the workers: what goes through the driver is a few numbers per row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_trainer import load_config, run_ppo
from rl_trainer.tiny import tiny_overrides

PROMPT, RESPONSE, ROWS = 4, 64, 16 * 8
# input_ids, attention_mask, position_ids; prompts; responses, response_mask and two float32 columns.
BATCH_BYTES = ROWS * (8 * 3 * (PROMPT + RESPONSE) + 8 * PROMPT + (8 + 8 + 4 + 4) * RESPONSE)
RUN = [
    "trainer.n_workers_per_node=2",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.n=8",
    f"data.max_response_length={RESPONSE}",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.export_at_end=false",
    "trainer.report=false",
    "data.val_files=[]",
]


def driver_bytes(folder: Path, config: str, *overrides: str) -> list[float]:
    run_ppo(load_config(config, [*tiny_overrides(folder), *RUN, *overrides]))
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["perf/driver_bytes"] for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_under_five_percent_of_a_grpo_batch_goes_through_the_driver(tmp_path: Path) -> None:
    # Old log-probs, several epochs, mini-batches: none of it needs a column per token on the driver.
    steps = ["actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.ppo_epochs=2"]
    moved = driver_bytes(tmp_path, "tiny_grpo", *steps)
    assert all(0 < count < 0.05 * BATCH_BYTES for count in moved)
