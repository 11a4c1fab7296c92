"""Keeps freed memory in the process on a CPU, where every training step asks for the same sizes again.

glibc returns large blocks to the system as soon as they are freed, and the next step pays for fresh pages:
about a tenth of a small model's step. Called when a worker builds its model, never on import.
"""

from __future__ import annotations

import ctypes
import logging
import sys

logger = logging.getLogger(__name__)

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Tell glibc to serve every size from a heap that does not shrink; False with another C library."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # a block of its own mapping (the head's gradient, say) would be unmapped when freed: so none of those
    wanted = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_TOP_PAD: 64 << 20}
    done = all(bool(mallopt(option, value)) for option, value in wanted.items())
    logger.debug("freed memory is kept: %s", done)
    return done
