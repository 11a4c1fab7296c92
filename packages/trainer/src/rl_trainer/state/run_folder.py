"""A run's folder belongs to one run: to one process at a time, and to one configuration."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ..config.loading import to_yaml
from ..config.tree import PPOConfig
from ..errors import CheckpointError, ConfigError

LOCK = ".lock"
# What the position in the data, the weights and the optimizer's state of a checkpoint are about.
FIXED = {
    *("data.train_files", "data.train_split", "data.shuffle", "data.prompt_key", "data.max_prompt_length"),
    *("data.filter_overlong_prompts", "data.reasoning_gym_size", "trainer.seed"),
    *(
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.model.lora_rank",
        "actor_rollout_ref.actor.optim.name",
    ),
    *("actor_rollout_ref.model.target_modules", "critic.model.path", "critic.optim.name"),
}
UNTOLD = {"trainer.resume_mode", "trainer.default_local_dir"}


@contextmanager
def owned(run: Path) -> Iterator[None]:
    """Keep a run's folder for this process; the lock ends with it, however it ends.

    Raises:
        ConfigError: another process has it, or nothing can be written there.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        file = (run / LOCK).open("a+")
    except OSError as error:
        raise ConfigError(f"trainer.default_local_dir={run} can't be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ConfigError(
                f"trainer.default_local_dir={run} is in use by {file.read().strip() or 'another process'}: "
                "wait for its end, or choose another folder"
            ) from error
        except OSError:
            pass  # a file system without locks
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def check_same_run(step_folder: Path, config: PPOConfig, allowed: bool) -> list[str]:
    """What differs from the configuration that a step was saved with, as lines to tell.

    Args:
        step_folder: holds that `config.yaml`; without it nothing is known to differ.
        config: of the run that goes on.
        allowed: the step was named by the user, who answers for what differs.

    Raises:
        CheckpointError: a key that the saved state is about differs.
    """
    try:
        saved = _leaves(yaml.safe_load((step_folder / "config.yaml").read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError, AttributeError):
        return []
    now = _leaves(yaml.safe_load(to_yaml(config)))
    changed = {key: (saved[key], now[key]) for key in now if key in saved and saved[key] != now[key]}
    fixed = sorted(FIXED & changed.keys())
    if fixed and not allowed:
        old, new = changed[fixed[0]]
        raise CheckpointError(
            f"{step_folder} was saved with {fixed[0]}={old}, now it is {new}: start a new run in another "
            f"trainer.default_local_dir, or go on all the same with trainer.resume_mode={step_folder}"
        )
    return [f"{key} was {old}, now {new}" for key, (old, new) in changed.items() if key not in UNTOLD]


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        inner = _leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else None
        found |= inner if inner is not None else {f"{prefix}{name}": value}
    return found
