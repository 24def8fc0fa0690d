"""A file's birth time, by ``statx``: no tool can set it, and a changed mode does not change it."""

from __future__ import annotations

import ctypes
import struct

AT_EMPTY_PATH = 0x1000
STATX_BTIME = 0x800
STATX_BYTES = 256
BTIME_AT = 80
MASK = struct.Struct("=I")
SECONDS = struct.Struct("=q")


def birth_time(descriptor: int) -> int | None:
    """Whole seconds since the epoch; None where it is not available."""
    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None:
        return None
    found = ctypes.create_string_buffer(STATX_BYTES)
    if statx(descriptor, b"", AT_EMPTY_PATH, STATX_BTIME, found) != 0:
        return None
    (mask,) = MASK.unpack_from(found)
    (seconds,) = SECONDS.unpack_from(found, BTIME_AT)
    return int(seconds) if mask & STATX_BTIME else None
