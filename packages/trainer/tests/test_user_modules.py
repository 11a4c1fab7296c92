"""A loss and an estimator of a user's own, in one file, by one key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_trainer import ConfigError, run_ppo
from rl_trainer.cli import main
from rl_trainer.config.loading import load_config
from rl_trainer.plan.resolve import resolve
from rl_trainer.tiny import tiny_overrides

MINE = """
import torch
from rl_algos import Metric, register_adv_est, register_policy_loss, weighted_sum


@register_policy_loss("{name}_loss")
def loss(old_log_prob, log_prob, advantages, response_mask, row_weights, push: float = 1.0, **rest):
    ratio = torch.exp(log_prob - old_log_prob)
    total = -push * weighted_sum(ratio * advantages, response_mask, row_weights)
    return total, {{"mine": Metric.mean(ratio, response_mask)}}


@register_adv_est("{name}_adv")
def estimator(token_level_rewards, response_mask):
    score = token_level_rewards.sum(1, keepdim=True)
    advantages = (score - score.mean()) * response_mask
    return advantages, advantages
"""


def words(folder: Path, name: str) -> list[str]:
    file = folder / "mine.py"
    file.write_text(MINE.format(name=name))
    return [
        *tiny_overrides(folder),
        f"algorithm.modules=[{file}]",
        f"algorithm.adv_estimator={name}_adv",
        f"actor_rollout_ref.actor.policy_loss.loss_mode={name}_loss",
        "actor_rollout_ref.actor.policy_loss.options.push=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.rollout.name=hf",
        "actor_rollout_ref.rollout.n=4",
        "data.train_batch_size=4",
        "trainer.total_training_steps=2",
        "trainer.val_before_train=false",
        "trainer.export_at_end=false",
    ]


@pytest.mark.slow
def test_own_loss_and_estimator_train_on_two_workers(tmp_path: Path) -> None:
    run_ppo(load_config("tiny_grpo", [*words(tmp_path, "ray"), "trainer.n_workers_per_node=2"]))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["actor/mine"] for line in lines] == pytest.approx([1.0, 1.0], abs=1e-3)
    assert lines[1]["actor/grad_norm"] > 0


def test_own_loss_and_estimator_train_in_this_process(tmp_path: Path) -> None:
    run_ppo(load_config("tiny_grpo", [*words(tmp_path, "local"), "trainer.backend=local"]))
    assert "actor/mine" in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_dry_run_finds_the_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tiny_grpo", *words(tmp_path, "dry"), "--dry-run"]) == 0
    assert "loss        dry_loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("no_such_package.losses", "ModuleNotFoundError"),
        ("/no/such/file.py", "FileNotFoundError"),
        ("broken.py", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_can_not_be_imported_is_told_before_the_start(
    tmp_path: Path, module: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    name = str(tmp_path / module) if module == "broken.py" else module
    with pytest.raises(ConfigError, match=message):
        resolve(load_config("tiny_grpo", [*tiny_overrides(tmp_path), f"algorithm.modules=[{name}]"]))
