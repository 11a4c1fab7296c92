"""Roles use an engine by its interface alone: behind it, any other engine would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from workers_models import make_batch
from workers_programs import (
    actor_config,
    make_prompts,
    make_worker,
    run_critic,
    run_reward,
    with_advantages,
)
from workers_ranks import run_ranks

from rl_protocol import DataProto
from rl_rollout import BaseRollout, BaseShardingManager
from rl_workers import (
    ActorRolloutRefConfig,
    ActorRolloutRefWorker,
    CriticConfig,
    EngineWorker,
    FSDPConfig,
    ModelConfig,
    OptimConfig,
    PackedBatch,
    RewardModelConfig,
    TrainEngine,
)
from rl_workers.engine.layout import Layout

BATCH = make_batch(groups=3, n=2, prompt=9, response=7, seed=23)
FLOAT32 = FSDPConfig(compute_dtype="float32")


class OnlyTheInterface(TrainEngine):
    """Another engine than FSDP's as far as a role can see: nothing but the abstract methods."""

    def __init__(self, engine: TrainEngine) -> None:
        at = engine.layout
        self.layout = Layout(at.device, at.rank, at.world_size, at.dp_rank, at.is_collect, at.sp_size)
        self.__engine = engine

    @property
    def lr(self) -> float:
        return self.__engine.lr

    def evaluate(self, batches: Sequence[PackedBatch], read: Callable[..., None], **options: Any) -> None:
        answers: list[Any] = []  # as from a pipeline: all of them when the last has come through
        self.__engine.evaluate(batches, lambda *answer: answers.append(answer), **options)
        for answer in answers:
            read(*answer)

    def train(self, batches: Sequence[PackedBatch], loss_fn: Callable[..., Any], **options: Any) -> float:
        return self.__engine.train(batches, loss_fn, **options)

    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        return self.__engine.weights(dtype)

    def sharding_manager(self, rollout: BaseRollout) -> BaseShardingManager:
        return self.__engine.sharding_manager(rollout)

    def save(self, path: str, global_step: int, **options: bool) -> None:
        self.__engine.save(path, global_step, **options)

    def wait(self) -> None:
        self.__engine.wait()

    def check(self, path: str) -> None:
        self.__engine.check(path)

    def load(self, path: str, **options: bool) -> int:
        return self.__engine.load(path, **options)

    def export(self, path: str, dtype: torch.dtype) -> None:
        self.__engine.export(path, dtype)

    def export_adapter(self, path: str) -> None:
        self.__engine.export_adapter(path)


def behind_the_interface(bare: bool, run: Callable[..., Any], *args: Any) -> Any:
    """Run a role's program, its engines hidden behind the interface if ``bare``."""
    build = EngineWorker.build_engine
    if bare:
        EngineWorker.build_engine = lambda *a, **k: OnlyTheInterface(build(*a, **k))  # type: ignore[method-assign]
    return run(*args)


def every_call_of_an_actor(config: ActorRolloutRefConfig, folder: str) -> dict[str, Any]:
    """Generate, evaluate, train, save, load, export, hand weights over: as plain values."""
    worker = make_worker(ActorRolloutRefWorker, config, "actor_rollout_ref")
    mine = with_advantages(worker.generate_sequences(make_prompts(4)))
    found = {"ref": worker.compute_ref_log_prob(mine).batch["ref_log_prob"].numpy()}
    worker.update_actor(mine)
    worker.save_checkpoint(folder, 1, blocking=False)
    worker.wait_checkpoint()
    found["trained"] = worker.compute_log_prob(mine).batch["old_log_probs"].numpy()
    worker.update_actor(mine)
    assert worker.load_checkpoint(folder) == 1
    found["restored"] = worker.compute_log_prob(mine).batch["old_log_probs"].numpy()
    worker.export_hf(f"{folder}-merged")
    worker.export_lora(f"{folder}-adapter")
    found["weights"] = worker.collect_weights().batch["bytes"].numpy()  # one row, from the first rank
    found["sampled"] = worker.generate_sequences(make_prompts(4)).batch["rollout_log_probs"].numpy()
    return found


def same_behind_it(tmp_path: Path, run: Callable[..., Any], *args: Any) -> Any:
    """What two ranks find by the engine as it is and behind the interface; the latter."""
    as_it_is, bare = (run_ranks(tmp_path, 2, behind_the_interface, b, run, *args) for b in (False, True))
    for wanted, found in zip(as_it_is, bare, strict=True):
        torch.testing.assert_close(found, wanted)
    return bare


def test_the_actor_and_all_it_can_be_asked(tiny_model: str, tmp_path: Path) -> None:
    config = actor_config(tiny_model, lr=0.5, model__lora_rank=4)
    (found, _) = same_behind_it(tmp_path, every_call_of_an_actor, config, str(tmp_path / "step"))
    assert np.abs(found["trained"] - found["ref"]).max() > 1e-3
    np.testing.assert_allclose(found["restored"], found["trained"], atol=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["step", "step-adapter", "step-merged"]


def test_the_critic(tiny_model: str, tmp_path: Path) -> None:
    sgd = OptimConfig(name="sgd", lr=0.1, weight_decay=0.0)
    config = CriticConfig(
        model=ModelConfig(path=tiny_model), optim=sgd, fsdp_config=FLOAT32, ppo_max_token_len_per_gpu=32
    )
    config.device = "cpu"
    same_behind_it(tmp_path, run_critic, config, BATCH, 1, str(tmp_path / "step"))


def test_the_reward_model(tiny_classifier: str, tmp_path: Path) -> None:
    config = RewardModelConfig(
        model=ModelConfig(path=tiny_classifier), fsdp_config=FLOAT32, forward_max_token_len_per_gpu=32
    )
    config.device = "cpu"
    same_behind_it(tmp_path, run_reward, config, DataProto.from_dict(tensors=BATCH))
