"""Mistakes in a configuration are found before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_algos import register_adv_est
from rl_trainer.cli import main
from rl_trainer.config.loading import config_keys, load_config, to_yaml
from rl_trainer.config.steps import optimizer_steps_per_batch, total_training_steps
from rl_trainer.errors import ConfigError, RLTrainerError
from rl_trainer.plan.resolve import resolve
from rl_trainer.tiny import tiny_overrides


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return tiny_overrides(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor_rollout_ref.actor.clip_ratoi=0.1", "Did you mean 'actor_rollout_ref.actor.clip_ratio'"),
        ("actor.clip_ratoi=0.1", "Did you mean 'actor_rollout_ref.actor.clip_ratio'"),
        ("trainer.total_epoch=1", "Did you mean 'trainer.total_epochs'"),
        ("qqqq=1", "not a configuration key"),
        ("trainer.seed=soon", "trainer.seed=soon"),
        ("critic.device=cpu", "follows from another key: set trainer.device"),
        ("trainer.seed", "write it as dotted.key=value"),
        ("data.train_files=train.jsonl", r"'data.train_files=\[train.jsonl\]'"),
    ],
)
def test_an_unknown_key_or_a_wrong_type_names_the_way_out(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override])


def test_an_unknown_key_in_a_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("trainer: {sede: 1}\n")
    with pytest.raises(ConfigError, match=r"Did you mean 'trainer.seed'"):
        load_config(file)
    file.write_text("- 1\n")
    with pytest.raises(ConfigError, match="must hold a mapping"):
        load_config(file)
    file.write_text("a: [\n")
    with pytest.raises(ConfigError, match="can't be read as YAML"):
        load_config(file)
    with pytest.raises(ConfigError, match="tiny_grpo"):
        load_config("no_such_config")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=12", "8 \\+ 5 = 13 tokens: raise it to 13"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=17", "both count prompts"),
        ("actor_rollout_ref.rollout.n=1", "rollout.n to 2 or more"),
        ("algorithm.adv_estimator=grpoo", "grpoo"),
        ("actor_rollout_ref.actor.strategy=megatron", "built: fsdp"),
        ("actor_rollout_ref.model.path=/nowhere", "config.json"),
        ("data.train_files=[]", "data.train_files is empty"),
        ("data.train_files=[/nowhere.jsonl]", "there is no file"),
        ("reward.function=rl_trainer.data.tasks:nothing", "can't be loaded"),
        ("trainer.logger=[mlflow]", "trackers: tensorboard, wandb"),
        ("trainer.resume_mode=never", "auto, disable or the folder"),
        ("trainer.timeout_s=0", "must be positive"),
        ("algorithm.adv_estimator=gdpo", "gdpo_reward_keys"),
        ("algorithm.rollout_correction.rollout_is=tokens", "none, token or sequence"),
        ("trainer.backend=local", "one process"),
        ("trainer.ray_address=auto", "trainer.device=auto looks at this machine"),
        ("data.max_response_length=4000", "positions"),
    ],
)
def test_what_does_not_fit_together_is_an_error_that_names_the_rule(
    overrides: list[str], override: str, message: str
) -> None:
    with pytest.raises(RLTrainerError, match=message):
        resolve(load_config("tiny_grpo", [*overrides, "trainer.n_workers_per_node=2", override]))


def test_an_estimator_of_the_users_own_may_not_read_what_nobody_makes(overrides: list[str]) -> None:
    def forecast(token_level_rewards: object, response_mask: object, weather: object) -> None:
        """Never called."""

    register_adv_est("forecast")(forecast)
    with pytest.raises(ConfigError, match="reads weather, which the trainer does not make"):
        resolve(load_config("tiny_grpo", [*overrides, "algorithm.adv_estimator=forecast"]))


def test_many_greedy_answers_are_refused(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match="would all be the greedy one"):
        greedy = "actor_rollout_ref.rollout.val.do_sample=false"
        resolve(load_config("tiny_grpo", [*overrides, greedy]))


def test_the_environment_names_a_cluster_too(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(ConfigError, match="joins a cluster"):
        resolve(load_config("tiny_grpo", [*overrides, "trainer.device=cpu"]))


def test_reference_and_actor_must_compute_alike(overrides: list[str]) -> None:
    words = [
        "actor_rollout_ref.actor.use_kl_loss=true",
        "actor_rollout_ref.ref.fsdp_config.compute_dtype=bfloat16",
    ]
    with pytest.raises(ConfigError, match="the KL would measure rounding"):
        resolve(load_config("tiny_grpo", [*overrides, *words]))


def test_a_correction_that_would_correct_nothing_is_refused(overrides: list[str]) -> None:
    key = "algorithm.rollout_correction"
    both = [f"{key}.bypass_mode=true", f"{key}.rollout_is=token"]
    with pytest.raises(ConfigError, match="compare them with themselves"):
        resolve(load_config("tiny_grpo", [*overrides, *both]))


def test_rows_of_an_older_policy_must_be_corrected_for(overrides: list[str]) -> None:
    ahead = ["trainer.staleness=1", "trainer.n_rollout_workers_per_node=1"]
    with pytest.raises(ConfigError, match="rows of an older policy"):
        resolve(load_config("tiny_grpo", [*overrides, *ahead]))
    resolve(load_config("tiny_grpo", [*overrides, *ahead, "algorithm.rollout_correction.bypass_mode=true"]))


def test_the_command_line_ends_with_one_line_and_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tiny_grpo", "trainer.sede=1"]) == 2
    error = capfd.readouterr().err
    assert "trainer.seed" in error and "Traceback" not in error and error.count("\n") == 1


def test_arithmetic_of_a_run(overrides: list[str]) -> None:
    config = resolve(load_config("tiny_grpo", [*overrides, "actor_rollout_ref.actor.ppo_mini_batch_size=6"]))
    assert optimizer_steps_per_batch(config) == 3
    config.trainer.total_training_steps, config.trainer.total_epochs = -1, 2
    assert total_training_steps(config, prompts=20) == 3
    assert config.actor_rollout_ref.rollout.response_length == 5


def test_the_resolved_tree_reads_back_equal(tmp_path: Path, overrides: list[str]) -> None:
    config = load_config("tiny_grpo", overrides)
    file = tmp_path / "resolved.yaml"
    file.write_text(to_yaml(config))
    assert load_config(file) == config


def test_every_key_is_documented_and_there_are_fewer_than_260() -> None:
    keys = config_keys()
    assert [path for path, key in keys.items() if not key.doc] == []
    assert len(keys) < 260
