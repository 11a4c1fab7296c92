"""Configuration errors that name key, value and rule; optimizers and learning-rate schedules."""

from __future__ import annotations

import dataclasses
from typing import get_type_hints

import pytest
import torch

from rl_workers import (
    ActorConfig,
    ActorRolloutRefConfig,
    ActorRolloutRefWorker,
    CheckpointError,
    CriticConfig,
    FSDPConfig,
    ModelConfig,
    OptimConfig,
    RewardModelConfig,
    RLWorkersError,
    WorkerConfigError,
    WorkerStateError,
)
from rl_workers.compute.policy_step import loss_options
from rl_workers.fsdp.optim import build_optimizer, build_scheduler, schedule_factor, take_step
from rl_workers.fsdp.sharding import layer_groups


def config(**changes: object) -> ActorRolloutRefConfig:
    return ActorRolloutRefConfig(model=ModelConfig(path="x"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (config(device="tpu"), "device='tpu': choose auto, cpu or cuda"),
        (config(actor=ActorConfig(strategy="megatron")), "strategy='megatron'.*built: fsdp"),
        (config(actor=ActorConfig(ppo_max_token_len_per_gpu=0)), "ppo_max_token_len_per_gpu=0"),
        (
            config(actor=ActorConfig(optim=OptimConfig(name="lion"))),
            "name='lion': choose adamw or sgd",
        ),
        (config(actor=ActorConfig(optim=OptimConfig(lr_scheduler_type="cosine"))), "cosine needs its length"),
        (config(actor=ActorConfig(fsdp_config=FSDPConfig(compute_dtype="int8"))), "compute_dtype='int8'"),
        (ActorRolloutRefConfig(), "model.path=''"),
        (CriticConfig(strategy="x"), "critic.strategy"),
        (RewardModelConfig(forward_max_token_len_per_gpu=0), "forward_max_token_len_per_gpu"),
    ],
)
def test_an_impossible_value_is_named(broken: object, words: str) -> None:
    with pytest.raises(WorkerConfigError, match=words):
        broken.validate()  # type: ignore[attr-defined]


def test_roles_and_states_are_checked() -> None:
    with pytest.raises(WorkerConfigError, match="choose one of actor, rollout"):
        ActorRolloutRefWorker(config(), "critic")
    with pytest.raises(WorkerStateError, match="call init_model"):
        ActorRolloutRefWorker(config(), "actor").save_checkpoint("x")
    assert issubclass(WorkerConfigError, RLWorkersError) and issubclass(CheckpointError, RuntimeError)


def test_every_field_is_documented_and_plain() -> None:
    plain = (int, float, str, bool, list[str], dict[str, float])
    for cls in (ActorRolloutRefConfig, CriticConfig, RewardModelConfig, ModelConfig, OptimConfig, FSDPConfig):
        hints = get_type_hints(cls)
        for field in dataclasses.fields(cls):
            assert hints[field.name] in plain or dataclasses.is_dataclass(hints[field.name])


def test_clip_ranges_and_options_reach_the_loss() -> None:
    from rl_algos import get_policy_loss_spec

    vanilla = get_policy_loss_spec("vanilla")
    assert loss_options(ActorConfig(clip_ratio=0.1), vanilla) == {"clip_ratio": 0.1, "clip_ratio_c": 3.0}
    assert loss_options(ActorConfig(clip_ratio_high=0.3), vanilla)["clip_ratio_high"] == 0.3
    broken = ActorConfig()
    broken.policy_loss.options = {"tau": 1.0}
    with pytest.raises(WorkerConfigError, match="'vanilla' has no tau; it has clip_ratio"):
        loss_options(broken, vanilla)


def test_schedules() -> None:
    warm = OptimConfig(lr=1.0, lr_warmup_steps=3)
    assert [schedule_factor(s, warm) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    line = OptimConfig(lr_scheduler_type="linear", total_training_steps=4, min_lr_ratio=0.5)
    assert [schedule_factor(s, line) for s in range(6)] == [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]
    cosine = OptimConfig(lr_scheduler_type="cosine", lr_warmup_steps=1, total_training_steps=5)
    assert schedule_factor(3, cosine) == pytest.approx(0.5)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = build_optimizer([weight], OptimConfig(name="sgd", lr=2.0, weight_decay=0.0))
    scheduler = build_scheduler(optimizer, warm)
    rates = []
    for _ in range(4):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_step_on_divided_gradients(name: str) -> None:
    start, grad = torch.randn(5, 7), torch.randn(5, 7)
    ends = []
    for divisor, given in ((4.0, grad), (1.0, grad / 4.0)):
        weight = torch.nn.Parameter(start.clone())
        weight.grad = given.clone()
        optimizer = build_optimizer([weight], OptimConfig(name=name, lr=0.1))
        take_step(optimizer, divisor)
        ends.append(weight.detach())
    assert not torch.equal(ends[0], start)
    torch.testing.assert_close(ends[0], ends[1])


def test_layers_are_grouped_up_to_the_size_of_the_embedding() -> None:
    layers = [torch.nn.Linear(4, 4, bias=False) for _ in range(5)]
    for words, wanted in ((8, [2, 2, 1]), (7, [1] * 5), (100, [5])):
        root = torch.nn.ModuleList([torch.nn.Embedding(words, 4), *layers])
        assert [len(group) for group in layer_groups(layers, root)] == wanted
