"""What this package raises. Each error names the value, the rule and the fix."""

from __future__ import annotations


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
