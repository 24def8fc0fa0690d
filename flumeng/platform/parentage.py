"""Processes that end with the one that started them (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies; an exec keeps that."""
    parent = os.getppid()
    _on_death_of_parent(signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(0)


def go_on_without_parent() -> None:
    """Have the kernel continue this process, should it be stopped when its parent dies: one that
    ends when its input ends then does so."""
    _on_death_of_parent(signal.SIGCONT)


def _on_death_of_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
