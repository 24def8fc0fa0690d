"""Long work tells a terminal how far it is, and a pipe nothing."""

from __future__ import annotations

import os
from contextlib import redirect_stderr

from cli.output import progress


def told(writing: int, reading: int) -> str:
    """What is read at one end when progress is written into the other."""
    with open(writing, "w", encoding="utf-8") as stream, redirect_stderr(stream):
        with progress("reading letters", 300) as tell:
            for _ in range(3):
                tell(100)
        stream.flush()
        os.set_blocking(reading, False)
        try:
            return os.read(reading, 65_536).decode()
        except BlockingIOError:
            return ""
        finally:
            os.close(reading)


def test_a_terminal_is_told_how_far_it_is() -> None:
    reading, terminal = os.openpty()
    shown = told(terminal, reading)
    assert "reading letters" in shown
    assert "100%" in shown


def test_a_pipe_is_told_nothing() -> None:
    reading, writing = os.pipe()
    assert not told(writing, reading)
