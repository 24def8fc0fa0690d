"""Which processes there are on this host (Linux)."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def boot() -> str:
    """An id of this boot of the host; no other boot or host has it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def has_ended(boot_id: str, pid: int) -> bool:
    """Whether a process with that number in that boot has certainly ended. Our own number was that
    of another process of this container before."""
    if boot_id != boot():
        return False
    return pid == os.getpid() or not Path(f"/proc/{pid}").exists()
