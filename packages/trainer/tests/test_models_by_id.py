"""A model is named by its id: it comes from the hub once, from its cache after that."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hub_server import COMMIT, serving
from huggingface_hub import constants
from transformers import AutoModelForCausalLM

from rl_trainer import run_ppo
from rl_trainer.config.loading import load_config
from rl_trainer.errors import RLTrainerError
from rl_trainer.models.tiny import make_tiny_model
from rl_trainer.plan.dry_run import describe_plan
from rl_trainer.plan.resolve import resolve
from rl_trainer.tiny import tiny_overrides

NAME = "words/tiny"
BY_ID = f"actor_rollout_ref.model.path={NAME}"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a client that may use the network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    words = [word for word in tiny_overrides(tmp_path / "data") if ".model.path" not in word]
    return [*words, "trainer.backend=local", "actor_rollout_ref.rollout.name=hf"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = make_tiny_model(tmp_path / "original")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"twice the bytes")
    return folder


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_model_by_id_trains_validates_exports_and_is_fetched_once(
    cache: Path, overrides: list[str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ["trainer.total_training_steps=1", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=2"]
    short += ["actor_rollout_ref.actor.ppo_mini_batch_size=4", BY_ID]
    with serving({NAME: model}) as (address, asked):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        plan = describe_plan(resolve(load_config("tiny_grpo", [*overrides, *short])))
        assert "weights are not on this machine yet" in plan
        assert not any("safetensors" in path for path in asked)
        config = load_config("tiny_grpo", [*overrides, *short])
        result = run_ppo(config)
        assert not any("onnx" in path or path.endswith(".bin") for path in asked)
    assert config.actor_rollout_ref.model.path == NAME
    assert config.actor_rollout_ref.model.revision == COMMIT
    assert result.val_after >= 0 and AutoModelForCausalLM.from_pretrained(result.export)
    kept = Path(config.trainer.default_local_dir) / "config.yaml"
    assert COMMIT in kept.read_text()
    offline(monkeypatch)  # the server is gone as well
    assert "M parameters" in describe_plan(resolve(load_config(kept, ["trainer.default_local_dir=x"])))


def test_what_the_cache_holds_needs_no_network(
    cache: Path, overrides: list[str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = cache / "models--words--tiny"
    shutil.copytree(model, entry / "snapshots" / COMMIT)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(COMMIT)
    offline(monkeypatch)
    config = resolve(load_config("tiny_ppo", [*overrides, BY_ID]))
    assert config.critic.model.path == NAME
    assert config.critic.model.revision == config.actor_rollout_ref.model.revision == COMMIT


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (BY_ID, r"not reached \(HF_HUB_OFFLINE is set\): run `hf download words/tiny`"),
        (f"{BY_ID}|actor_rollout_ref.model.revision=v2", "hf download words/tiny --revision v2`"),
        (
            "actor_rollout_ref.model.path=/no/such/folder",
            r"neither a folder .* nor a model's id \(owner/name\)",
        ),
    ],
)
def test_without_a_network_the_message_says_what_to_fetch(
    cache: Path, overrides: list[str], override: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline(monkeypatch)
    with pytest.raises(RLTrainerError, match=message):
        resolve(load_config("tiny_grpo", [*overrides, *override.split("|")]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "actor_rollout_ref.model.path=words/tinny",
            "neither a folder .* knows; a private one needs HF_TOKEN",
        ),
        (f"{BY_ID}|actor_rollout_ref.model.revision=v2", "words/tiny has no revision 'v2'"),
        ("actor_rollout_ref.model.path=words/secret", "words/secret is gated: ask for access on http"),
        (
            f"{BY_ID}|critic.model.path=words/none|algorithm.adv_estimator=gae|critic.ppo_mini_batch_size=4",
            "critic.model.path='words/none'",
        ),
        (
            f"{BY_ID}|reward.model_enable=true|reward.model.model.path=words/rm",
            "reward.model.model.path='words/rm'",
        ),
    ],
)
def test_what_the_hub_refuses_is_told_before_anything_starts(
    cache: Path,
    overrides: list[str],
    model: Path,
    override: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving({NAME: model}, {"words/secret"}) as (address, _):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        with pytest.raises(RLTrainerError, match=message):
            resolve(load_config("tiny_grpo", [*overrides, *override.split("|")]))
