"""A tiny model learns, end to end: real Ray, two FSDP2 workers, a real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_trainer import FitResult, load_config, run_ppo
from rl_trainer.tiny import tiny_overrides

MARGIN = 0.4  # a random policy gets about one letter in eight right


def train(folder: Path, config: str, *overrides: str) -> tuple[FitResult, list[dict[str, Any]], Path]:
    result = run_ppo(
        load_config(config, [*tiny_overrides(folder), "trainer.n_workers_per_node=2", *overrides])
    )
    run = folder / "run"
    return result, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()], run


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("config", "engine"), [("tiny_grpo", "vllm"), ("tiny_ppo", "hf")])
def test_reward_rises_above_a_random_policy(tmp_path: Path, config: str, engine: str) -> None:
    if engine == "vllm":
        pytest.importorskip("vllm")
    result, lines, run = train(tmp_path, config, f"actor_rollout_ref.rollout.name={engine}")
    assert result.val_before < 0.2
    assert result.val_after > result.val_before + MARGIN
    assert [line["step"] for line in lines] == list(range(result.steps + 1))
    assert max(line["rollout_corr/log_prob_diff_max"] for line in lines[1:]) < 1e-3
    assert (run / "config.yaml").is_file() and list((run / "generations").glob("step_*.jsonl"))
    model = AutoModelForCausalLM.from_pretrained(run / "export", dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) > 0
