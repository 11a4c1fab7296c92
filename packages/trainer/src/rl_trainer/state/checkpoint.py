"""Step folders that are whole or absent.

A step is written beside its final place, flushed to disk, renamed, and only then does the pointer file
move. A process that dies at any moment leaves the previous step as the newest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .files import replace_text, sync_folder, write_json

POINTER = "latest_checkpointed_iteration.txt"
STATE = "trainer.json"
FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("global_step", "drawn", "version"), int),
    **dict.fromkeys(("stream", "kl_ctrl", "validations", "versions"), dict),
    "training_seconds": (int, float),
    "in_flight": list,
}


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: `<run>/checkpoints`; made when the first step is written.
        keep: how many complete steps stay.
    """

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        self.folder, self.keep = Path(folder), keep

    def newest_first(self) -> list[Path]:
        """Folders of complete steps: the one that the pointer names, then the others, newest first."""
        steps, pointed = self.steps()[::-1], self._pointed()
        first = [pointed] if pointed in steps else []
        return [self.folder / f"global_step_{step}" for step in [*first, *(s for s in steps if s != pointed)]]

    def _pointed(self) -> int:
        """The step that the pointer file names; -1 where it is missing or damaged."""
        try:
            return int((self.folder / POINTER).read_text())
        except (OSError, ValueError):
            return -1

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
        found = (state.parent.name.rpartition("_")[2] for state in self.folder.glob(f"global_step_*/{STATE}"))
        return sorted(int(step) for step in found if step.isdecimal())

    def _prune(self, keep_also: int) -> None:
        for step in set(self.steps()[: -self.keep]) - {keep_also}:
            shutil.rmtree(self.folder / f"global_step_{step}")
        for leftover in self.folder.glob(".writing_global_step_*"):
            shutil.rmtree(leftover)


def read_state(step_folder: Path) -> dict[str, Any]:
    """The trainer's own state in a step folder.

    Raises:
        CheckpointError: the file can't be read, or lacks a field or has one of another type; it is named.
    """
    file = step_folder / STATE
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} can't be read: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{file} holds no object")
    for name, kinds in FIELDS.items():
        if name not in state:
            raise CheckpointError(f"{file} lacks {name!r}")
        if not isinstance(state[name], kinds) or isinstance(state[name], bool):
            raise CheckpointError(f"{file}: {name} is {repr(state[name])[:60]}")
    if f"global_step_{state['global_step']}" != step_folder.name:
        raise CheckpointError(f"{file} is of step {state['global_step']}, in the folder {step_folder.name}")
    return state
