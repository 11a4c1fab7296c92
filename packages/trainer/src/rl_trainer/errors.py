"""What this package raises. Each error names the value, the rule and the fix."""

from __future__ import annotations

import errno

DISK = {
    errno.ENOSPC: "free some space, or choose another folder",
    errno.EDQUOT: "free some space, or choose another folder",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "choose a folder that you may write to, or a file that you may read",
    errno.EPERM: "choose a folder that you may write to, or a file that you may read",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EISDIR: "a folder stands where a file is needed",
}


class RLTrainerError(Exception):
    """Root of every error that rl-trainer raises on purpose."""


class ConfigError(RLTrainerError, ValueError):
    """A setting is unknown, contradictory, or does not fit the others."""


class DataError(RLTrainerError, ValueError):
    """A dataset file or one of its rows can't be used."""


class RewardError(RLTrainerError, ValueError):
    """The reward function can't be found or has a signature that we can't call."""


class CheckpointError(RLTrainerError, RuntimeError):
    """A checkpoint is missing, incomplete, or was made by something else."""


class TrainingError(RLTrainerError, RuntimeError):
    """The run can't go on: the message says which stage failed and on which step."""


def disk_problem(error: object) -> str | None:
    """One sentence for a disk that is full or closed to the user; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in DISK:
        return None
    return (
        f"{error.filename or 'the disk'}: {error.strerror}: {DISK[error.errno]} (trainer.default_local_dir)"
    )
