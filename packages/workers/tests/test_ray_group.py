"""The fused worker in real Ray actors: generation, log-probs, update, sync, on two ranks with uneven rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
from workers_programs import actor_config, make_prompts, with_advantages

from rl_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from rl_rollout import engine_env
from rl_workers import ActorRolloutRefWorker


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    if ray.is_initialized():
        yield
        return
    ray.init(
        "local", num_cpus=4, object_store_memory=300_000_000, include_dashboard=False, log_to_driver=False
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def group(cluster: None, tiny_model: str) -> Iterator[Any]:
    config = actor_config(tiny_model, lr=0.05)
    made = RayWorkerGroup(
        resource_pool=RayResourcePool(process_on_nodes=[2], use_gpu=False),
        ray_cls_with_init=RayClassWithInitArgs(
            cls=ActorRolloutRefWorker, config=config, role="actor_rollout_ref"
        ),
        worker_env=engine_env("cpu") | {"HF_HUB_OFFLINE": "1"},
    )
    made.init_model()
    yield made
    made.shutdown()


def test_engine_and_trainer_agree_before_and_after_a_step(group: Any) -> None:
    for rows in (5, 3):
        generated = group.generate_sequences(make_prompts(rows))
        assert len(generated) == rows
        batch = with_advantages(generated)
        found = group.compute_log_prob(batch).batch["old_log_probs"]
        mask = batch.batch["response_mask"].bool()
        difference = (found - batch.batch["rollout_log_probs"])[mask].abs().max()
        assert difference < 1e-4
        metrics = group.update_actor(batch).meta_info["metrics"]
        assert np.max(metrics["rollout_corr/k3_kl"]) < 1e-6
        assert np.min(metrics["actor/grad_norm"]) > 0
        changed = group.compute_log_prob(batch).batch["old_log_probs"]
        assert (changed - found)[mask].abs().max() > 1e-3
        reference = group.compute_ref_log_prob(batch).batch["ref_log_prob"]
        if rows == 5:
            assert (reference - found)[mask].abs().max() < 1e-6


def test_a_rank_without_rows_takes_part(group: Any) -> None:
    batch = with_advantages(group.generate_sequences(make_prompts(1)))
    assert group.compute_log_prob(batch).batch["old_log_probs"].shape == (1, 7)
    metrics = group.update_actor(batch).meta_info["metrics"]
    assert np.isfinite(metrics["actor/pg_loss"]).all()
