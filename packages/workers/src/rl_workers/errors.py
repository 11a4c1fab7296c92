"""Errors of this package: one root, each subclass also the stdlib type that it refines."""

from __future__ import annotations


class RLWorkersError(Exception):
    """Root of every error that rl-workers raises itself."""


class WorkerConfigError(RLWorkersError, ValueError):
    """A configuration value that cannot work, or that contradicts another."""


class ModelSupportError(RLWorkersError, ValueError):
    """A model, or a feature of one, that the asked-for path does not support."""


class TokenBudgetError(RLWorkersError, ValueError):
    """A row that is longer than a whole micro-batch may be."""


class BatchError(RLWorkersError, ValueError):
    """A batch that lacks a column or whose columns disagree."""


class CheckpointError(RLWorkersError, RuntimeError):
    """A checkpoint that is absent, incomplete or does not fit the model."""


class WorkerStateError(RLWorkersError, RuntimeError):
    """A method called on a worker that does not play the role or is not initialised."""


class CollectiveError(RLWorkersError, RuntimeError):
    """FSDP used a collective in another order or size than this package's form of it is written for."""
