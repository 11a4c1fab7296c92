"""Errors of rl-protocol: one root, each subclass also the standard type it refines.

What code written for verl catches as an `AssertionError` is one here too.
"""

from __future__ import annotations


class RLProtocolError(Exception):
    """Root of every error this package raises on purpose."""


class MissingColumnError(RLProtocolError, KeyError):
    """A column or meta key that was named does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ColumnConflictError(RLProtocolError, ValueError, AssertionError):
    """Two batches hold different values under one column name."""


class MetaConflictError(RLProtocolError, ValueError, AssertionError):
    """Two batches hold different values under one `meta_info` key."""


class ShapeError(RLProtocolError, ValueError, AssertionError):
    """Row counts, shapes or dtypes do not fit together."""


class ColumnTypeError(RLProtocolError, TypeError):
    """A column is of a type that a batch cannot hold."""


class RowIndexError(RLProtocolError, IndexError):
    """A row index lies outside the batch."""


class FormatError(RLProtocolError, ValueError):
    """A file, or a value to be written to one, does not follow the on-disk format."""


class FutureError(RLProtocolError, RuntimeError):
    """A future was used in a way that its pieces do not allow."""


class FutureTimeoutError(RLProtocolError, TimeoutError):
    """The producers of a future did not finish within the stated time."""
