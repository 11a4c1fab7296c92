"""What a run computes in is decided before it starts, the same for trainer and engine, and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rl_rollout.precision as rule
import rl_trainer.cluster.precision as cluster
from rl_trainer import PPOConfig, load_config
from rl_trainer.config.loading import to_yaml
from rl_trainer.errors import TrainingError
from rl_trainer.models.tiny import make_tiny_model
from rl_trainer.plan.dry_run import describe_plan
from rl_trainer.plan.precision import computes_in, emulated
from rl_trainer.plan.resolve import resolve
from rl_trainer.tiny import tiny_overrides

ENGINE = "actor_rollout_ref.rollout.dtype"
ACTOR = "actor_rollout_ref.actor.fsdp_config.compute_dtype"
AUTO = [f"{key}=auto" for key in (ENGINE, ACTOR, "actor_rollout_ref.ref.fsdp_config.compute_dtype")]


@pytest.fixture(params=[{"avx512_bf16"}, {"avx2"}], ids=["with", "without"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A processor with bfloat16, and one without: what it has natively."""
    monkeypatch.setattr(rule, "_cpu_flags", lambda: request.param)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    return "bfloat16" if "avx512_bf16" in request.param else "float32"


def config(folder: Path, *overrides: str) -> PPOConfig:
    return load_config("tiny_grpo", [*tiny_overrides(folder), "trainer.device=cpu", *overrides])


def test_auto_is_the_default_wherever_a_dtype_of_computation_is_a_key() -> None:
    keys = {key: getattr(owner, name) for owner, name, key in rule.compute_keys(PPOConfig())}
    assert len(keys) == 5 and set(keys.values()) == {"auto"}


def test_trainer_and_engine_get_one_precision_and_the_kept_configuration_says_which(
    tmp_path: Path, native: str
) -> None:
    found = resolve(config(tmp_path, *AUTO))
    assert computes_in(found) == native and emulated(found) == []
    assert f"precision   {native}" in describe_plan(found)
    assert "auto" not in [line.partition("dtype: ")[2] for line in to_yaml(found).splitlines()]


def test_an_explicit_choice_stays_and_says_what_it_costs_where_it_is_emulated(
    tmp_path: Path, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_trainer.plan.precision.emulation_cost", lambda dtype: 7.25)
    found = resolve(config(tmp_path, f"{ENGINE}=float32", f"{ACTOR}=bfloat16"))
    assert computes_in(found) == f"{ACTOR}=bfloat16, {ENGINE}=float32"
    wanted = [] if native == "bfloat16" else [f"{ACTOR}: this processor emulates bfloat16"]
    assert [line.partition(";")[0] for line in emulated(found)] == wanted
    half = resolve(config(tmp_path, f"{ENGINE}=float16", f"{ACTOR}=float16"))
    (line,) = emulated(half)
    assert ENGINE in line and ACTOR in line and "7.2 x" in line


def test_a_cluster_that_is_joined_decides_once_it_is(tmp_path: Path, native: str) -> None:
    joined = ["trainer.ray_address=10.0.0.1:6379", "trainer.n_workers_per_node=1"]
    found = resolve(config(tmp_path, *AUTO, *joined))
    assert computes_in(found).startswith("auto (what all nodes have")
    assert rule.fill_auto(found, native) and computes_in(found) == native


class Nodes:
    """Stands for Ray: nodes that answer what they compute in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> None:
        self.answers, self.asked = answers, []
        monkeypatch.setattr(cluster.ray, "nodes", self.nodes)
        monkeypatch.setattr(cluster.ray, "remote", lambda function: self)
        monkeypatch.setattr(cluster.ray, "get", self.get)
        monkeypatch.setattr(cluster, "NodeAffinitySchedulingStrategy", lambda node, soft: node)

    def nodes(self) -> list[dict[str, Any]]:
        gpus = {"a": 8.0, "b": 8.0}
        return [
            {
                "NodeID": name,
                "Alive": name != "dead",
                "Resources": {"GPU": gpus[name]} if name in gpus else {},
            }
            for name in self.answers
        ]

    def options(self, **options: Any) -> Any:
        self.asked.append(options["scheduling_strategy"])
        return self

    def remote(self, device: str) -> str:
        return self.answers[self.asked[-1]]

    def get(self, answers: list[str], timeout: float) -> list[str]:
        if "late" in answers:
            raise cluster.ray.exceptions.GetTimeoutError("no answer")
        return answers


def test_nodes_that_differ_share_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    where = PPOConfig().trainer
    where.device = "cuda"
    mixed = Nodes(monkeypatch, {"a": "bfloat16", "b": "bfloat16", "head": "float32", "dead": "float32"})
    assert cluster.nodes_dtype(where) == "bfloat16" and mixed.asked == ["a", "b"]  # those with GPUs
    where.device = "cpu"
    assert cluster.nodes_dtype(where) == "float32" and mixed.asked[2:] == ["a", "b", "head"]
    Nodes(monkeypatch, {"a": "late"})
    with pytest.raises(TrainingError, match="compute_dtype"):
        cluster.nodes_dtype(where)


def test_a_worker_of_its_own_resolves_auto_too(tmp_path: Path, native: str) -> None:
    from rl_rollout import GenerationRequest, RolloutConfig, SamplingConfig, build_rollout

    model = make_tiny_model(tmp_path / "model")
    settings = RolloutConfig(name="hf", load_format="auto", prompt_length=8, response_length=4)
    rollout: Any = build_rollout(settings, str(model))
    assert rollout.model.dtype == getattr(torch, native) and rollout.config.dtype == native
    (answer,) = rollout.generate([GenerationRequest([5, 6], SamplingConfig(), 1, 4)])
    assert answer.token_ids
