"""The value model: zero at first, towards the returns, the same on two ranks, restored from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from workers_models import make_batch
from workers_programs import run_critic
from workers_ranks import run_ranks

from rl_workers import CriticConfig, FSDPConfig, ModelConfig, OptimConfig

BATCH = make_batch(groups=3, n=2, prompt=9, response=7, seed=11, holes=True)


def critic_config(path: str) -> CriticConfig:
    return CriticConfig(
        model=ModelConfig(path=path),
        optim=OptimConfig(lr=0.01, weight_decay=0.0),
        fsdp_config=FSDPConfig(compute_dtype="float32"),
        ppo_max_token_len_per_gpu=48,
        cliprange_value=5.0,
        device="cpu",
    )


def test_learns_the_returns_alike_on_any_number_of_ranks(tiny_model: str, tmp_path: Path) -> None:
    config = critic_config(tiny_model)
    one = run_ranks(tmp_path, 1, run_critic, config, BATCH, 60, save=str(tmp_path / "saved"))[0]
    two = run_ranks(tmp_path, 2, run_critic, config, BATCH, 5)
    assert (one["before"] == 0).all()  # a new head
    mask = BATCH["response_mask"].numpy().astype(bool)
    assert (one["after"][~mask] == 0).all()
    first, last = one["metrics"][0]["critic/vf_loss"], one["metrics"][-1]["critic/vf_loss"]
    assert last < 0.6 * first
    error = 0.5 * ((one["after"] - BATCH["advantages"].numpy())[mask] ** 2).mean()
    assert error == pytest.approx(last, rel=0.5) and error < first
    for rank in two:
        for mine, whole in zip(rank["metrics"], one["metrics"], strict=False):
            assert mine["critic/vf_loss"] == pytest.approx(whole["critic/vf_loss"], rel=1e-3)


def test_a_classifier_s_head_is_taken_over(tiny_classifier: str, tmp_path: Path) -> None:
    found = run_ranks(tmp_path, 1, run_critic, critic_config(tiny_classifier), BATCH, 0)[0]
    assert np.abs(found["before"]).max() > 0.01


@pytest.mark.parametrize("targets", [["all-linear"], ["q_proj", "v_proj"]])
def test_a_head_is_trained_beside_adapters(tiny_model: str, tmp_path: Path, targets: list[str]) -> None:
    config = critic_config(tiny_model)
    config.model.lora_rank, config.model.target_modules = 4, targets
    found = run_ranks(tmp_path, 1, run_critic, config, BATCH, 40, save=str(tmp_path / "saved"))[0]
    first, last = (found["metrics"][step]["critic/vf_loss"] for step in (0, -1))
    assert (found["before"] == 0).all() and last < 0.7 * first
    mask = BATCH["response_mask"].numpy().astype(bool)
    error = 0.5 * ((found["after"] - BATCH["advantages"].numpy())[mask] ** 2).mean()
    assert error == pytest.approx(last, rel=0.5)  # the head came back from the checkpoint as well
