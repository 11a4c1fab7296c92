"""`python -m rl_trainer.tiny`: a two-layer model learns to copy words, in about a second a step."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from .cli import main
from .data.tasks import copy_rows, write_jsonl
from .models.tiny import make_tiny_model

WORD_LENGTH = 3


def tiny_overrides(folder: Path) -> list[str]:
    """Make model and data in `folder`; give the overrides that point a configuration at them."""
    model = make_tiny_model(folder / "model")
    train = write_jsonl(folder / "train.jsonl", copy_rows(512, WORD_LENGTH, seed=1))
    val = write_jsonl(folder / "val.jsonl", copy_rows(32, WORD_LENGTH, seed=2))
    return [
        f"actor_rollout_ref.model.path={model}",
        f"data.train_files=[{train}]",
        f"data.val_files=[{val}]",
        f"trainer.default_local_dir={folder / 'run'}",
    ]


def run(arguments: Sequence[str]) -> int:
    """`[configuration] overrides...`; the default configuration is tiny_grpo."""
    words = list(arguments)
    source = words.pop(0) if words and "=" not in words[0] else "tiny_grpo"
    folder = Path("runs") / source
    sys.stdout.write(f"making a small model and its data in {folder}\n")
    sys.stdout.flush()
    return main(["train", source, *tiny_overrides(folder), *words])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
