"""Long work shows its progress on a terminal, and nothing in a pipe."""

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
    """The bytes at the ``reading`` end when progress is shown at the ``writing`` end."""
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


def test_progress_is_shown_on_a_terminal() -> None:
    reading, terminal = os.openpty()
    shown = told(terminal, reading)
    assert "reading letters" in shown
    assert "100%" in shown


def test_progress_is_not_shown_in_a_pipe() -> None:
    reading, writing = os.pipe()
    assert not told(writing, reading)


def backfill() -> None:
    with moving_progress("orders-backfill-1") as tell:
        assert tell is not None
        tell("items", 30, 100)
        tell("items", 120, 120)


def test_progress_towards_a_growing_total_is_shown_on_a_terminal() -> None:
    reading, terminal = os.openpty()
    shown = told(terminal, reading, backfill)
    assert "orders-backfill-1" in shown
    assert "120/120 items" in shown


def test_progress_is_not_counted_for_a_pipe() -> None:
    reading, writing = os.pipe()

    def work() -> None:
        with moving_progress("orders-backfill-1") as tell:
            assert tell is None

    assert not told(writing, reading, work)
