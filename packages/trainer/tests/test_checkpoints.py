"""A checkpoint is whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_trainer.errors import CheckpointError
from rl_trainer.state.checkpoint import CheckpointStore, read_state


def save(store: CheckpointStore, step: int, dies: bool = False) -> None:
    with store.writing(step, {"global_step": step}) as folder:
        (folder / "weights").write_text(str(step))
        if dies:
            raise KeyboardInterrupt


def test_the_newest_two_survive_a_restart_and_a_death_midway(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)
    save(store, 2)
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 3)
    with pytest.raises(KeyboardInterrupt):
        save(store, 4, dies=True)
    assert store.steps() == [2, 3]
    latest = CheckpointStore(tmp_path, keep=2).latest()
    assert latest is not None and read_state(latest) == {"global_step": 3}
    assert [(tmp_path / f"global_step_{n}" / "weights").read_text() for n in (2, 3)] == ["2", "3"]
    save(store, 4)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        "global_step_3",
        "global_step_4",
    ]


def test_no_folder_means_no_checkpoint_and_a_dangling_pointer_is_an_error(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "none")
    assert store.latest() is None and store.steps() == []
    save(store, 5)
    (tmp_path / "none" / "global_step_5" / "trainer.json").unlink()
    with pytest.raises(CheckpointError, match="global_step_5"):
        store.latest()
