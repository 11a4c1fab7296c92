"""Recognising batches without importing torch: what was never imported cannot be an instance."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from rl_protocol import DataProto, DataProtoFuture

HEAVY_BYTES = 64 * 1024


def is_batch(value: Any) -> TypeGuard[DataProto]:
    """True for a `DataProto`."""
    protocol = sys.modules.get("rl_protocol")
    return protocol is not None and isinstance(value, protocol.DataProto)


def is_future(value: Any) -> TypeGuard[DataProtoFuture]:
    """True for a `DataProtoFuture`."""
    protocol = sys.modules.get("rl_protocol")
    return protocol is not None and isinstance(value, protocol.DataProtoFuture)


def is_heavy(value: Any) -> bool:
    """True if sending the value to each worker anew would cost more than keeping it once in the store."""
    if isinstance(value, str | bytes):
        return len(value) > HEAVY_BYTES
    if isinstance(value, list | tuple):
        return len(value) > HEAVY_BYTES // 8 or any(is_heavy(item) for item in value)
    if isinstance(value, dict):
        return any(is_heavy(item) for item in value.values())
    if is_batch(value):
        return True
    nbytes = getattr(value, "nbytes", 0)
    return isinstance(nbytes, int) and nbytes > HEAVY_BYTES


def private(value: Any) -> Any:
    """A value that the receiver may write: batches are cloned, read-only arrays copied, containers walked."""
    if is_batch(value):
        return value.clone()
    if type(value) is dict:
        return {key: private(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(private(item) for item in value)
    flags = getattr(value, "flags", None)
    if flags is not None and getattr(flags, "writeable", True) is False and hasattr(value, "copy"):
        return value.copy()
    return value
