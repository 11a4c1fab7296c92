"""Step folders that are whole or absent.

A step is written beside its final place, flushed to disk, renamed, and only then does the pointer file
move. A process that dies at any moment leaves the previous step as the latest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from ..errors import CheckpointError
from .files import replace_text, sync_folder, write_json

POINTER = "latest_checkpointed_iteration.txt"
STATE = "trainer.json"


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: `<run>/checkpoints`; made when the first step is written.
        keep: how many complete steps stay.
    """

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        self.folder, self.keep = Path(folder), keep

    def latest(self) -> Path | None:
        """The newest complete step's folder.

        Raises:
            CheckpointError: the pointer names a folder that is not there.
        """
        pointer = self.folder / POINTER
        if not pointer.is_file():
            return None
        path = self.folder / f"global_step_{int(pointer.read_text())}"
        if not (path / STATE).is_file():
            raise CheckpointError(
                f"{pointer} names {path.name}, which is missing or incomplete; "
                "write the number of a step that is there into the pointer file, or remove the folder"
            )
        return path

    @contextmanager
    def writing(self, step: int, state: dict[str, Any], keep_also: int = -1) -> Iterator[Path]:
        """Give a folder to write a step's parts into; complete the step when the block ends well.

        Older steps than the newest `keep` are deleted then, but for `keep_also` (the best one).
        """
        final = self.folder / f"global_step_{step}"
        aside = self.folder / f".writing_global_step_{step}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside
        write_json(aside / STATE, state)
        sync_folder(aside)
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
        sync_folder(self.folder)
        replace_text(self.folder / POINTER, str(step))
        self._prune(keep_also)

    def steps(self) -> list[int]:
        """Complete steps, oldest first."""
        complete = self.folder.glob(f"global_step_*/{STATE}")
        return sorted(int(state.parent.name.rpartition("_")[2]) for state in complete)

    def _prune(self, keep_also: int) -> None:
        for step in set(self.steps()[: -self.keep]) - {keep_also}:
            shutil.rmtree(self.folder / f"global_step_{step}")
        for leftover in self.folder.glob(".writing_global_step_*"):
            shutil.rmtree(leftover)


def read_state(step_folder: Path) -> dict[str, Any]:
    """The trainer's own state in a step folder."""
    return cast(dict[str, Any], json.loads((step_folder / STATE).read_text()))
