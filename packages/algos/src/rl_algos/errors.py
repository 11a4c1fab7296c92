"""Errors of this package: one root, and each subclass is also the standard error it refines."""

from __future__ import annotations


class RLAlgosError(Exception):
    """Root of every error that rl_algos raises on purpose."""


class ShapeError(RLAlgosError, ValueError):
    """A tensor's shape does not fit the others."""


class DTypeError(RLAlgosError, TypeError):
    """A tensor's dtype, or an argument's type, is not one that the function takes."""


class OptionError(RLAlgosError, ValueError):
    """An option has a value outside its rule, is missing, or contradicts another."""


class NonFiniteError(RLAlgosError, ValueError):
    """A tensor holds NaN or infinity where the mask says that it matters."""


class UnknownNameError(RLAlgosError, KeyError):
    """A name that no estimator, loss, mode or estimator of KL is registered under."""

    def __str__(self) -> str:
        """Return the message itself; KeyError would show its repr."""
        return str(self.args[0])


class DuplicateNameError(RLAlgosError, ValueError):
    """A name is registered already for another function."""
