"""How fast the disk takes plain sequential writes that are synced."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benches.senders import make_blocks

SYNC_BYTES = 4 << 20
"""As much as the journal syncs at once when it is busy."""


def fdatasync_mb_per_second(folder: Path, nbytes: int) -> float:
    """The lines that the senders send, written 4 MiB at a time, ``fdatasync`` after each write."""
    lines = b"".join(make_blocks())
    piece = memoryview(lines * (SYNC_BYTES // len(lines) + 1))[:SYNC_BYTES]
    fd = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        written = 0
        began = time.monotonic()
        while written < nbytes:
            written += os.write(fd, piece)
            os.fdatasync(fd)
        return written / 1e6 / (time.monotonic() - began)
    finally:
        os.close(fd)
