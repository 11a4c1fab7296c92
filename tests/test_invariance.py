"""A run's numbers do not depend on how it is cut: workers, micro-batches, padding, shared prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_trainer import load_config, run_ppo
from rl_trainer.tiny import tiny_overrides

MODEL, ACTOR = "actor_rollout_ref.model", "actor_rollout_ref.actor"
RUN = [
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=6",
    f"{ACTOR}.ppo_mini_batch_size=3",
    f"{ACTOR}.optim.name=sgd",
    f"{ACTOR}.optim.lr=0.1",
    "trainer.total_training_steps=10",
    "trainer.val_before_train=false",
    "trainer.export_at_end=false",
    "trainer.report=false",
]
KEYS = ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "actor/ppo_kl", "critic/score/mean")


def numbers(folder: Path, *overrides: str) -> list[list[float]]:
    run_ppo(load_config("tiny_grpo", [*tiny_overrides(folder), *RUN, *overrides]))
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [[json.loads(line)[key] for key in KEYS] for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ten_steps_are_the_same_however_they_are_cut(tmp_path: Path) -> None:
    local = "trainer.backend=local"
    whole = numbers(tmp_path / "whole", local)
    cuts = {
        "small micro-batches": [local, f"{ACTOR}.ppo_max_token_len_per_gpu=13"],
        "padded": [local, f"{MODEL}.use_remove_padding=false", f"{MODEL}.share_prompts=false"],
        "packed without shared prompts": [local, f"{MODEL}.share_prompts=false"],
        "two workers": ["trainer.n_workers_per_node=2"],
    }
    for name, overrides in cuts.items():
        found = numbers(tmp_path / name.replace(" ", "-"), *overrides)
        for step, (one, other) in enumerate(zip(whole, found, strict=True), 1):
            assert other == pytest.approx(one, abs=1e-4), (
                f"{name}, step {step}: {dict(zip(KEYS, other, strict=True))}"
            )
