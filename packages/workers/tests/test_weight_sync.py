"""Engine and trainer: one space of log-probabilities, new weights after a step, and a check that notices."""

from __future__ import annotations

from pathlib import Path

from workers_programs import actor_config, rounds
from workers_ranks import run_ranks


def test_with_temperature_and_tied_weights_the_two_agree_after_steps(tied_model: str, tmp_path: Path) -> None:
    config = actor_config(tied_model, rollout__temperature=0.7)
    for metrics in run_ranks(tmp_path, 2, rounds, config, 3)[0]:
        assert metrics["rollout_corr/log_prob_diff_max"] < 1e-4


def test_without_the_sync_the_mismatch_is_noticed(tiny_model: str, tmp_path: Path) -> None:
    metrics = run_ranks(tmp_path, 1, rounds, actor_config(tiny_model), 2, sync=False)[0]
    assert metrics[0]["rollout_corr/log_prob_diff_max"] < 1e-4
    assert metrics[1]["rollout_corr/log_prob_diff_max"] > 1e-2
    assert metrics[1]["rollout_corr/k3_kl"] > 100 * abs(metrics[0]["rollout_corr/k3_kl"])
