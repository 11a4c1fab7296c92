"""The commands beside training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rl_trainer.cli import main
from rl_trainer.tiny import tiny_overrides

LOCAL = [
    "trainer.backend=local",
    "actor_rollout_ref.rollout.name=hf",
    "trainer.total_training_steps=1",
    "trainer.val_before_train=false",
]


def test_a_dry_run_prints_configuration_and_plan_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*tiny_overrides(tmp_path), "trainer.n_workers_per_node=2"]
    assert main(["train", "tiny_grpo", words[0], "--dry-run", *words[1:]]) == 0
    text = capsys.readouterr().out
    assert "16 prompts x 16 samples = 256 rows a step, 128 a rank" in text
    assert "adv_estimator: grpo" in text and "GB of weights" in text
    assert not (tmp_path / "run").exists()


def test_keys_and_doctor_say_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "trainer.seed"]) == 0
    assert "trainer.seed: int = 0" in capsys.readouterr().out
    assert main(["doctor"]) == 0
    assert "rl-trainer" in capsys.readouterr().out


def test_a_run_is_trained_evaluated_exported_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "tiny_grpo", *tiny_overrides(tmp_path), *LOCAL]) == 0
    run = tmp_path / "run"
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Samples" in page and "plotly" in page and "adv_estimator: grpo" in page
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    trained = last["val-core/copy/reward/mean@4"]
    capsys.readouterr()
    # The resolved configuration that a run keeps is a configuration; its checkpoint is what is scored.
    assert main(["eval", str(run)]) == 0
    assert f"val-core/copy/reward/mean@4 {trained:.4f}" in capsys.readouterr().out
    (run / "report.html").unlink()
    assert main(["report", str(run)]) == 0 and (run / "report.html").is_file()
    assert "tokens" in json.loads((run / "generations" / "step_1.jsonl").read_text().splitlines()[0])
    shutil.rmtree(run / "export")
    assert main(["export", str(run)]) == 0
    assert (run / "export" / "model.safetensors").is_file()
    assert main(["export", "tiny_grpo", *tiny_overrides(tmp_path / "new"), *LOCAL]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err
