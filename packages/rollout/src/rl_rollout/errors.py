"""Exceptions of this package: one root, each also the standard type it refines."""

from __future__ import annotations


class RLRolloutError(Exception):
    """Root of every error this package raises on purpose."""


class RolloutConfigError(RLRolloutError, ValueError):
    """A setting has a value that no engine could honour."""


class RolloutDataError(RLRolloutError, ValueError):
    """A batch, request or weight stream has the wrong keys, shapes or values."""


class UnknownRolloutError(RLRolloutError, KeyError):
    """`rollout.name` names an engine that is not registered."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class EngineStateError(RLRolloutError, RuntimeError):
    """The engine was asked for something its present state can't give (asleep, closed, no weights)."""


class EngineEnvironmentError(RLRolloutError, RuntimeError):
    """The process environment or process group isn't what the engine needs."""


class LogProbSpaceError(RLRolloutError, ValueError):
    """Two sets of log-probs live in different spaces (temperature, truncation) and can't be compared."""


class ChatTemplateError(RLRolloutError, ValueError):
    """There is no chat template, or it refuses or leaves out messages."""
