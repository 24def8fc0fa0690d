"""Long work tells a terminal how far it is, and a pipe nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import redirect_stderr, suppress

from cli.output import moving_progress, progress


def letters() -> None:
    with progress("reading letters", 300) as tell:
        for _ in range(3):
            tell(100)


def told(writing: int, reading: int, work: Callable[[], None] = letters) -> str:
    """What is read at one end when progress is written into the other."""
    with open(writing, "w", encoding="utf-8") as stream, redirect_stderr(stream):
        work()
        stream.flush()
        os.set_blocking(reading, False)
        found = b""
        with suppress(BlockingIOError):
            while more := os.read(reading, 65_536):
                found += more
        os.close(reading)
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found.decode())


def test_a_terminal_is_told_how_far_it_is() -> None:
    reading, terminal = os.openpty()
    shown = told(terminal, reading)
    assert "reading letters" in shown
    assert "100%" in shown


def test_a_pipe_is_told_nothing() -> None:
    reading, writing = os.pipe()
    assert not told(writing, reading)


def backfill() -> None:
    with moving_progress("orders-backfill-1") as tell:
        assert tell is not None
        tell("items", 30, 100)
        tell("items", 120, 120)


def test_a_terminal_is_told_how_far_it_is_of_what_still_grows() -> None:
    reading, terminal = os.openpty()
    shown = told(terminal, reading, backfill)
    assert "orders-backfill-1" in shown
    assert "120/120 items" in shown


def test_nothing_is_counted_for_a_pipe() -> None:
    reading, writing = os.pipe()

    def work() -> None:
        with moving_progress("orders-backfill-1") as tell:
            assert tell is None

    assert not told(writing, reading, work)
