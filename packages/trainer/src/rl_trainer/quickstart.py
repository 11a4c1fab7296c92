"""`python -m rl_trainer.quickstart`: a real language model learns to add, on a laptop or a GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from .cli import main
from .config.loading import load_config
from .data.tasks import addition_rows, write_jsonl
from .errors import RLTrainerError
from .models.smollm2 import smollm2_folder
from .state.checkpoint import CheckpointStore


def overrides(run: Path) -> list[str]:
    """Get the model and write the data; give the overrides that point the configuration at them."""
    train, held_out = addition_rows()
    return [
        f"actor_rollout_ref.model.path={smollm2_folder()}",
        f"data.train_files=[{write_jsonl(run / 'data' / 'train.jsonl', train)}]",
        f"data.val_files=[{write_jsonl(run / 'data' / 'held_out.jsonl', held_out)}]",
        f"trainer.default_local_dir={run}",
    ]


def next_run_folder(root: Path, total_steps: int) -> Path:
    """The first of `quickstart`, `quickstart-2`, ... that has no finished run in it."""
    number = 1
    while True:
        folder = root / ("quickstart" if number == 1 else f"quickstart-{number}")
        if total_steps not in CheckpointStore(folder / "checkpoints").steps():
            return folder
        number += 1


def run(arguments: Sequence[str]) -> int:
    """Train; further arguments are overrides. Returns the exit status."""
    try:
        config = load_config("quickstart", arguments)
        given = any(word.startswith("trainer.default_local_dir=") for word in arguments)
        folder = (
            Path(config.trainer.default_local_dir)
            if given
            else next_run_folder(Path("runs"), config.trainer.total_training_steps)
        )
        sys.stdout.write("preparing the model and the data (the first time takes half a minute)\n")
        sys.stdout.flush()
        made = overrides(folder)
    except RLTrainerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    status = main(["train", "quickstart", *made, *arguments])
    if status == 0:
        sys.stdout.write(f"everything about the run is in {folder}\n")
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
