"""Processes of this host: start, end and clean-up (Linux)."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from functools import cache
from pathlib import Path

PYTHON = (sys.executable, "-P", "-m")
"""The command that runs a module of flumeng, and imports nothing from the working directory."""
PR_SET_PDEATHSIG = 1


@cache
def boot() -> str:
    """Return a unique id of this boot and of the process's PID namespace; empty if unknown."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def has_ended(boot_id: str, pid: int) -> bool:
    """Return whether a process has certainly ended; False for one of another or unknown boot or
    container. The number of this process counts as that of an ended one, which had it before."""
    if not boot_id or boot_id != boot():
        return False
    return pid == os.getpid() or not Path(f"/proc/{pid}").exists()


def die_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when its parent dies; kept across ``exec``."""
    parent = os.getppid()
    _on_death_of_parent(signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(0)


def go_on_without_parent() -> None:
    """Let the kernel resume this process, if stopped, when its parent dies, to read its EOF."""
    _on_death_of_parent(signal.SIGCONT)


def _on_death_of_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def forbid_core_dumps() -> None:
    """Keep secrets and events in memory off the disk after a crash. The limit is inherited, unlike
    ``PR_SET_DUMPABLE``. Only the soft limit is set: a user's command may raise it."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
