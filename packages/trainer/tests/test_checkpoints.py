"""A checkpoint is whole or absent; one that was damaged is named, and the run goes on from the one before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_trainer import load_config, run_ppo
from rl_trainer.errors import CheckpointError, ConfigError
from rl_trainer.state.checkpoint import POINTER, STATE, CheckpointStore, read_state
from rl_trainer.state.run_folder import owned
from rl_trainer.tiny import tiny_overrides
from rl_trainer.view.tracking import MetricsFile, read_metrics

WHOLE: dict[str, Any] = {
    "global_step": 3,
    "drawn": 3,
    "version": 3,
    "training_seconds": 1.5,
    "in_flight": [],
    "stream": {},
    "kl_ctrl": {},
    "validations": {},
    "versions": {},
}
LOCAL = [
    "trainer.backend=local",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "trainer.save_freq=2",
    "trainer.export_at_end=false",
    "trainer.report=false",
]


def save(store: CheckpointStore, step: int, dies: bool = False, also: int = -1) -> None:
    with store.writing(step, WHOLE | {"global_step": step}, also) as folder:
        (folder / "weights").write_text(str(step))
        if dies:
            raise KeyboardInterrupt


def steps(store: CheckpointStore) -> list[str]:
    return [folder.name.removeprefix("global_step_") for folder in store.newest_first()]


def test_the_newest_two_survive_a_restart_and_a_death_midway(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)
    save(store, 2)
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 3)
    with pytest.raises(KeyboardInterrupt):
        save(store, 4, dies=True)
    assert store.steps() == [2, 3]
    newest, *_ = CheckpointStore(tmp_path, keep=2).newest_first()
    assert read_state(newest)["global_step"] == 3
    assert [(tmp_path / f"global_step_{n}" / "weights").read_text() for n in (2, 3)] == ["2", "3"]
    save(store, 4)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        "global_step_3",
        "global_step_4",
    ]


def test_the_best_of_those_saved_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    for step, best in ((1, 1), (2, 1), (3, 1), (4, 4)):
        save(store, step, also=best)
        assert store.steps() == sorted({best, step})


@pytest.mark.parametrize("pointer", ["", "x", "7", "-1", "3"])
def test_the_pointer_s_step_comes_first_and_a_damaged_pointer_hides_nothing(
    tmp_path: Path, pointer: str
) -> None:
    store = CheckpointStore(tmp_path / "run", keep=3)
    assert store.newest_first() == [] and store.steps() == []
    for step in (3, 5, 12):
        save(store, step)
    (tmp_path / "run" / "global_step_x").mkdir()
    (tmp_path / "run" / POINTER).write_text(pointer)
    assert steps(store) == (["3", "12", "5"] if pointer == "3" else ["12", "5", "3"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "can't be read"),
        ('{"global_step": 3', "can't be read"),
        ("[" * 100_000, "can't be read"),
        ("[3]", "holds no object"),
        ({"global_step": 1000}, "is of step 1000, in the folder global_step_3"),
        ({"global_step": -5}, "is of step -5"),
        ({"global_step": "3"}, "global_step is '3'"),
        ({"stream": []}, "stream is"),
        ({"kl_ctrl": None}, "kl_ctrl is None"),
        ({"validations": 7}, "validations is 7"),
        ({"in_flight": {}}, "in_flight is"),
        ({"training_seconds": True}, "training_seconds is True"),
        ("{}", "lacks 'global_step'"),
    ],
)
def test_a_damaged_state_is_named_by_file_and_field(
    tmp_path: Path, text: str | dict[str, Any], message: str
) -> None:
    folder = tmp_path / "global_step_3"
    folder.mkdir()
    (folder / STATE).write_text(text if isinstance(text, str) else json.dumps(WHOLE | text))
    with pytest.raises(CheckpointError, match=f"{STATE}.*{message}"):
        read_state(folder)


def test_metrics_hold_each_step_once_whatever_stands_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [b'{"step": 0, "x": 1}', b"garbage", b"", b"\xff\xfe", b"\0\0", b'{"x": 3}', b"[1]"]
    lines += [b'{"step": 1, "x": 1}', b'{"step": 1, "x": 2}', b'{"step": 2}', b'{"step": 3, "x"']
    file.write_bytes(b"\n".join(lines))
    MetricsFile(file, resume_step=1).log({"x": float("nan")}, 2)
    assert read_metrics(file) == [{"step": 0, "x": 1}, {"step": 1, "x": 2}, {"step": 2, "x": None}]
    MetricsFile(file, resume_step=-1)
    assert file.read_text() == ""


def test_a_run_s_folder_belongs_to_one_process(tmp_path: Path) -> None:
    refused = pytest.raises(ConfigError, match="is in use by process")
    with owned(tmp_path / "run"), refused, owned(tmp_path / "run"):
        raise AssertionError
    with owned(tmp_path / "run"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can't be written"), owned(tmp_path / "file"):
        raise AssertionError


def train(made: list[str], folder: Path, *overrides: str) -> list[dict[str, Any]]:
    run = folder / "run"
    run_ppo(load_config("tiny_grpo", [*made, *LOCAL, f"trainer.default_local_dir={run}", *overrides]))
    return numbers(run)


def numbers(run: Path) -> list[dict[str, Any]]:
    lines = read_metrics(run / "metrics.jsonl")
    return [{k: v for k, v in line.items() if not k.startswith(("timing_s/", "perf/"))} for line in lines]


SIX = "trainer.total_training_steps=6"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return tiny_overrides(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def finished(made: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps that nothing disturbed; steps 4 and 6 are kept."""
    folder = tmp_path_factory.mktemp("finished")
    train(made, folder, SIX)
    return folder


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": lambda step: flip(next((step / "actor").glob("*.distcp"))),
    "halved": lambda step: (step / "actor" / ".metadata").write_bytes(b"x"),
    "missing": lambda step: next((step / "actor").glob("*.distcp")).unlink(),
    "no manifest": lambda step: (step / "actor" / "manifest.json").unlink(),
    "no state": lambda step: (step / "actor" / "worker_state.json").write_text("{}"),
    "state": lambda step: (step / STATE).write_text("{}"),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_newest_step_is_named_and_the_one_before_it_taken(
    finished: Path, made: list[str], tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished / "run", tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "global_step_6"
    DAMAGE[damage](newest)
    assert train(made, tmp_path, SIX) == numbers(finished / "run")
    told = "".join(capsys.readouterr())
    assert "global_step_6 can't be used" in told and "global_step_4" in told


def test_a_run_that_died_before_its_first_checkpoint_begins_again(
    finished: Path, made: list[str], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    lines = (finished / "run" / "metrics.jsonl").read_text().splitlines(True)
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines[:2]) + '{"step": 2, "x')
    assert train(made, tmp_path, SIX) == numbers(finished / "run")


def test_another_configuration_in_the_folder_is_told_or_refused(
    finished: Path, made: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished / "run", tmp_path / "run")
    kept = (tmp_path / "run" / "config.yaml").read_text()
    other = ["data.shuffle=false", "actor_rollout_ref.actor.optim.lr=0.5", "trainer.total_training_steps=7"]
    with pytest.raises(
        CheckpointError, match=r"was saved with data.shuffle=True, now it is False.*resume_mode="
    ):
        train(made, tmp_path, *other)
    assert (tmp_path / "run" / "config.yaml").read_text() == kept
    step = tmp_path / "run" / "checkpoints" / "global_step_6"
    assert len(train(made, tmp_path, *other, f"trainer.resume_mode={step}")) == 8
    assert "actor_rollout_ref.actor.optim.lr was " in "".join(capsys.readouterr())
