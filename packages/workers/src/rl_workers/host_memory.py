"""Keeps freed memory in the process on a CPU, where every training step asks for the same sizes again.

glibc returns blocks above a threshold to the system as soon as they are freed, and the next step pays for
fresh pages: about a tenth of a small model's step. Called when a worker builds its model, never on import.
"""

from __future__ import annotations

import ctypes
import logging
import sys

logger = logging.getLogger(__name__)

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_HEAP_BLOCK = 32 << 20  # glibc takes no larger value


def keep_freed_memory() -> bool:
    """Raise glibc's thresholds for this process; False with another C library, which has none."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {_M_MMAP_THRESHOLD: _LARGEST_HEAP_BLOCK, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 64 << 20}
    done = all(bool(mallopt(option, value)) for option, value in wanted.items())
    logger.debug("malloc thresholds raised: %s", done)
    return done
