"""Single keys from the terminal, without Enter."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
}
Wait = Callable[[float], str]
"""Waits so many seconds for a key; gives its name or letter, or nothing."""


@contextmanager
def keyboard() -> Iterator[Wait]:
    """The terminal gives each key at once and shows none, until the end. Needs a terminal as
    standard input."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def wait(seconds: float) -> str:
        if not select.select([fd], [], [], seconds)[0]:
            return ""
        pressed = os.read(fd, 8)
        return SEQUENCES.get(pressed) or pressed[:1].decode("ascii", "ignore")

    tty.setcbreak(fd)
    try:
        yield wait
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
