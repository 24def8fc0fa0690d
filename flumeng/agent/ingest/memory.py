"""How the worker gets its memory: buffers of about 1 MiB, the same sizes again and again.

Arrow's own allocator keeps 12 MB more of them than the C library's. The C library would give each
one back to the kernel and fault it in again, a page at a time; it is told to keep them.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 8 << 20
_MAPPED_FROM_BYTES = 32 << 20


def keep_buffers() -> None:
    """Call it before pyarrow is imported. It matters for speed and size only: a C library that
    cannot be told so (musl) is left as it is."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:
        tell(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        tell(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
