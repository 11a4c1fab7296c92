"""Training and generation in processes, and on nodes, of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from rl_trainer import load_config, run_ppo
from rl_trainer.tiny import tiny_overrides

SEPARATE = [
    "actor_rollout_ref.rollout.name=hf",
    "trainer.n_workers_per_node=2",
    "trainer.n_rollout_workers_per_node=1",
    "actor_rollout_ref.rollout.n=4",
    "trainer.val_before_train=false",
]
AHEAD = ["trainer.staleness=1", "algorithm.rollout_correction.rollout_is=token"]


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Cluster]:
    """A head that only drives, a node for the two trainers, a node for the engine."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 200 << 20})
    for cpus in (2, 1):
        cluster.add_node(num_cpus=cpus, object_store_memory=200 << 20)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def train(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    run_ppo(load_config("tiny_grpo", [*tiny_overrides(folder), *SEPARATE, *overrides]))
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def numbers(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.startswith(("timing_s/", "perf/"))}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cluster_of_three_nodes_trains_synchronously_and_ahead(
    tmp_path: Path, three_nodes: Cluster
) -> None:
    lines = train(tmp_path / "synchronous", "trainer.total_training_steps=2")
    # The engine has the weights of the last update: its log-probs are the trainer's.
    assert all(line["rollout_corr/log_prob_diff_max"] < 1e-4 for line in lines)
    assert [line["training/staleness"] for line in lines] == [0, 0]
    saving = ["trainer.total_training_steps=4", "trainer.save_freq=2", *AHEAD]
    ahead = train(tmp_path / "ahead", *saving)
    assert [line["training/staleness"] for line in ahead] == [0, 1, 1, 1]
    assert ahead[0]["rollout_corr/log_prob_diff_max"] < 1e-4 < ahead[1]["rollout_corr/log_prob_diff_max"]
    # A run that died after its second step goes on with the batch that was in flight then.
    checkpoints = tmp_path / "ahead" / "run" / "checkpoints"
    shutil.rmtree(checkpoints / "global_step_4")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    again = train(tmp_path / "ahead", *saving)
    assert [numbers(line) for line in again] == [numbers(line) for line in ahead]
