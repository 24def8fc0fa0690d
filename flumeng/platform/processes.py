"""Which processes there are on this host (Linux)."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

PYTHON = (sys.executable, "-P", "-m")
"""Begins the command of a module of ours. What lies in the working directory is not imported: there
may be a directory ``flumeng``, or whatever somebody puts there."""


@cache
def boot() -> str:
    """An id of this boot of the host and of the namespace in which this process has its number: no
    other boot, host or container has it. Empty when it cannot be known."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def has_ended(boot_id: str, pid: int) -> bool:
    """Whether a process with that number in that boot has certainly ended. What happens in another
    container of this host is not known. Our own number was that of another process before."""
    if boot_id != boot():
        return False
    return pid == os.getpid() or not Path(f"/proc/{pid}").exists()
