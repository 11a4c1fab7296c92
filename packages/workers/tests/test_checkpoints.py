"""Checkpoints: another number of ranks, without optimizer, in the background, a save that dies."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from workers_models import make_batch
from workers_programs import actor_config, dying_save, run_actor
from workers_ranks import run_ranks

from rl_workers import CheckpointError, OptimConfig
from rl_workers.fsdp.checkpoint import commit, read_description, recover
from rl_workers.fsdp.safe_reader import INDEX, SafeReader

BATCH = make_batch(groups=3, n=2, prompt=9, response=7, seed=7)


def adamw(path: str) -> Any:
    schedule = OptimConfig(lr=0.01, lr_warmup_steps=3, lr_scheduler_type="cosine", total_training_steps=9)
    return actor_config(path, actor__optim=schedule)


@pytest.mark.parametrize("blocking", [True, False])
def test_saved_on_two_ranks_continues_on_one_and_four(
    tied_model: str, tmp_path: Path, blocking: bool
) -> None:
    config, folder = adamw(tied_model), str(tmp_path / "step")
    four_steps = run_ranks(tmp_path, 1, run_actor, config, BATCH, 4)[0]["metrics"]
    run_ranks(tmp_path, 2, run_actor, config, BATCH, 2, save=folder, blocking=blocking)
    for world in (1, 2, 4):
        resumed = run_ranks(tmp_path, world, run_actor, config, BATCH, 2, load=folder)
        for found in resumed:
            assert found["step"] == 2
            for mine, whole in zip(found["metrics"], four_steps[2:], strict=True):
                assert mine["actor/pg_loss"] == pytest.approx(whole["actor/pg_loss"], abs=1e-6)
                assert mine["actor/lr"] == pytest.approx(whole["actor/lr"], rel=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["step"]


def test_a_save_that_dies_midway_leaves_the_previous_one(tiny_model: str, tmp_path: Path) -> None:
    config, folder = adamw(tiny_model), str(tmp_path / "step")
    first = run_ranks(tmp_path, 2, run_actor, config, BATCH, 1, save=folder)[0]
    assert run_ranks(tmp_path, 2, dying_save, config, BATCH, folder) == [True, True]
    found = run_ranks(tmp_path, 1, run_actor, config, BATCH, 0, load=folder)[0]
    assert found["step"] == 1
    np.testing.assert_allclose(found["before"][:3], first["after"], atol=1e-4)


def test_a_rename_that_was_interrupted_is_undone(tmp_path: Path) -> None:
    final, old = tmp_path / "step", tmp_path / "step.old"
    old.mkdir()
    assert recover(final) == old  # the new one did not get its name
    final.mkdir()
    assert recover(final) == final
    partial = tmp_path / "step.partial"
    partial.mkdir()
    (partial / "new").write_text("x")
    commit(partial, final)
    assert (final / "new").read_text() == "x"
    assert not old.exists() and not partial.exists()


def test_weights_alone(tiny_model: str, tmp_path: Path) -> None:
    config, folder = adamw(tiny_model), str(tmp_path / "step")
    run_ranks(tmp_path, 1, run_actor, config, BATCH, 1, save=folder, with_optimizer=False)
    with pytest.raises(AssertionError, match="saved without its optimizer"):
        run_ranks(tmp_path, 1, run_actor, config, BATCH, 0, load=folder)
    found = run_ranks(tmp_path, 1, run_actor, config, BATCH, 0, load=folder, load_optimizer=False)[0]
    assert found["step"] == 1


def test_what_is_no_checkpoint_is_refused(tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="holds no complete checkpoint"):
        run_ranks(tmp_path, 1, run_actor, adamw(tiny_model), BATCH, 0, load=str(tmp_path / "none"))
    assert issubclass(CheckpointError, RuntimeError)


class Payload:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.touch, (self.file,))


def saved_index(folder: Path) -> Path:
    """A checkpoint of this process alone."""
    dcp.save({"w": torch.arange(6.0).reshape(2, 3)}, checkpoint_id=folder, no_dist=True)
    return folder / INDEX


def test_code_in_an_index_never_runs(tmp_path: Path) -> None:
    index = saved_index(tmp_path / "step")
    good = pickle.loads(index.read_bytes())
    ran = tmp_path / "ran"
    for holder in (Payload(ran), {"a": Payload(ran)}, dataclasses.replace(good, planner_data=Payload(ran))):
        index.write_bytes(pickle.dumps(holder))
        with pytest.raises(CheckpointError, match=INDEX):
            SafeReader(index.parent).read_metadata()
    assert not ran.exists()


def test_an_index_cannot_lead_to_a_pickle_or_out_of_its_folder(tmp_path: Path) -> None:
    index = saved_index(tmp_path / "step")
    good = pickle.loads(index.read_bytes())
    bytes_entry = dataclasses.replace(good, state_dict_metadata={"w": BytesStorageMetadata()})
    places = {k: dataclasses.replace(v, relative_path="../secret") for k, v in good.storage_data.items()}
    for changed in (bytes_entry, dataclasses.replace(good, storage_data=places), {"no": "metadata"}):
        index.write_bytes(pickle.dumps(changed))
        with pytest.raises(CheckpointError):
            SafeReader(index.parent).read_metadata()


def test_a_damaged_index_is_an_error_of_ours_and_a_good_one_loads(tmp_path: Path) -> None:
    index = saved_index(tmp_path / "step")
    whole = index.read_bytes()
    for cut in range(0, len(whole), 7):
        index.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            SafeReader(index.parent).read_metadata()
    index.write_bytes(whole)
    state = {"w": torch.zeros(2, 3)}
    dcp.load(state, storage_reader=SafeReader(index.parent), no_dist=True)
    assert state["w"].flatten().tolist() == list(range(6))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": 2}', '{"format": 1, "global_step": -5}', '{"format": 1, "global_step": "4"}'],
)
def test_a_damaged_description_names_file_and_field(tmp_path: Path, text: str) -> None:
    (tmp_path / "worker_state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"worker_state\.json"):
        read_description(tmp_path / "worker_state.json")
