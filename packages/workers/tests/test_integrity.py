"""Nothing in a checkpoint is run, and nothing that was changed is read."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from workers_ranks import run_ranks

from rl_workers.errors import CheckpointError
from rl_workers.fsdp.integrity import MANIFEST, SafeReader, check_manifest, write_manifest


def state() -> dict[str, Any]:
    return {"a": torch.arange(64.0), "b": {"c": torch.ones(3, 4, dtype=torch.bfloat16), "n": torch.tensor(7)}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    dcp.save(state(), checkpoint_id=folder, no_dist=True)
    return folder


class Runs:
    """Unpickled, it calls something."""

    def __init__(self, call: Any, *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> Any:
        return self.call, self.args


@pytest.mark.parametrize(
    "payload",
    [
        Runs(os.mkdir, "made-by-a-checkpoint"),
        Runs(eval, "__import__('os').mkdir('made-by-a-checkpoint')"),
        {"storage_data": [Runs(getattr, "x", "upper")]},
        [Runs(torch.load, "x")],
        3,
        None,
    ],
)
def test_metadata_that_is_more_than_data_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, payload: object
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(payload))
    with pytest.raises(pickle.UnpicklingError):
        SafeReader(tmp_path).read_metadata()
    assert not Path("made-by-a-checkpoint").exists()


def test_what_torch_wrote_is_read(saved: Path) -> None:
    found, wanted = state(), state()
    for tensor in (found["a"], found["b"]["c"], found["b"]["n"]):
        tensor.zero_()
    dcp.load(found, storage_reader=SafeReader(saved), no_dist=True)
    assert torch.equal(found["a"], wanted["a"]) and torch.equal(found["b"]["c"], wanted["b"]["c"])
    assert int(found["b"]["n"]) == 7


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_metadata_with_any_bytes_changed_runs_nothing(saved: Path, seed: int) -> None:
    chance, data = random.Random(seed), bytearray((saved / ".metadata").read_bytes())
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    folder = saved.parent / "changed"
    folder.mkdir(exist_ok=True)
    (folder / ".metadata").write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
    with contextlib.suppress(Exception):  # a checkpointer makes one error of all of them
        SafeReader(folder).read_metadata()
    assert [path.name for path in folder.iterdir()] == [".metadata"]


def damaged(folder: str, kinds: list[str]) -> dict[str, str]:
    """What is said of each kind of damage, on this rank."""
    told = {}
    for kind in kinds:
        place = Path(folder) / kind
        if dist.get_rank() == 0:
            place.mkdir()
            for name, size in (("one", 5000), ("two", 300), ("three", 0)):
                (place / name).write_bytes(os.urandom(size))
        dist.barrier()
        write_manifest(place)
        if dist.get_rank() == 0:
            damage(place, kind)
        dist.barrier()
        try:
            check_manifest(place)
        except CheckpointError as error:
            told[kind] = str(error)
    return told


def damage(folder: Path, kind: str) -> None:
    one, manifest = folder / "one", folder / MANIFEST
    data = bytearray(one.read_bytes())
    data[4321] ^= 4
    actions: dict[str, Any] = {
        "flipped": lambda: one.write_bytes(data),
        "cut": lambda: one.write_bytes(data[:-1]),
        "gone": one.unlink,
        "unlisted": manifest.unlink,
        "torn": lambda: manifest.write_text(manifest.read_text()[:-9]),
        "list": lambda: manifest.write_text("[1]"),
        "whole": lambda: None,
    }
    actions[kind]()


def test_each_rank_says_which_file_was_changed(tmp_path: Path) -> None:
    kinds = ["flipped", "cut", "gone", "unlisted", "torn", "list", "whole"]
    first, second = run_ranks(tmp_path, 2, damaged, str(tmp_path), kinds)
    assert first == second and "whole" not in first
    assert "one holds other bytes" in first["flipped"]
    assert "4999 bytes, 5000 were written" in first["cut"]
    assert "one is missing" in first["gone"]
    assert all(f"{MANIFEST} can't be read" in first[kind] for kind in ("unlisted", "torn", "list"))
