"""Waiting for other threads and processes; a wait in vain fails with the last value seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 180.0
"""Longer than anything takes on a busy machine: only a failing test waits that long."""
FIRST_PAUSE_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 0.5

Errors = type[Exception] | tuple[type[Exception], ...]


def wait_for(
    condition: Callable[[], T | None],
    what: str | Callable[[], object] = "",
    *,
    seconds: float = PATIENCE_SECONDS,
    pause_seconds: float = 0.05,
    ignoring: Errors = (),
) -> T:
    """Return the first true value of ``condition``.

    After ``seconds`` it fails with ``what`` (a callable is asked at that time) and the last value.
    Errors of the kinds ``ignoring`` count as not yet. Pauses grow to ``pause_seconds``, and are at
    least as long as a look took, so that a busy machine is not kept busy by its tests.
    """
    __tracebackhide__ = True
    deadline = time.monotonic() + seconds
    pause = FIRST_PAUSE_SECONDS
    last: object = None
    while True:
        began = time.monotonic()
        try:
            if answer := condition():
                return answer
            last = answer
        except ignoring as error:
            last = error
        now = time.monotonic()
        if now >= deadline:
            cause = last if isinstance(last, Exception) else None
            raise _in_vain(seconds, what, last) from cause
        time.sleep(max(pause, min(now - began, LONGEST_PAUSE_SECONDS)))
        pause = min(1.5 * pause, pause_seconds)


async def async_wait_for(
    condition: Callable[[], T | None],
    what: str | Callable[[], object] = "",
    *,
    seconds: float = PATIENCE_SECONDS,
    pause_seconds: float = 0.01,
) -> T:
    """As ``wait_for``; other tasks of the event loop run meanwhile."""
    __tracebackhide__ = True
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() >= deadline:
            raise _in_vain(seconds, what, answer)
        await asyncio.sleep(pause_seconds)
    return answer


def _in_vain(seconds: float, what: str | Callable[[], object], last: object) -> AssertionError:
    reason = what() if callable(what) else what
    return AssertionError(f"waited {seconds:g} s in vain: {reason}; last value: {last!r}")


def retry(
    action: Callable[[], T],
    errors: Errors,
    what: str | Callable[[], object] = "",
    *,
    seconds: float = PATIENCE_SECONDS,
) -> T:
    """Return the answer of ``action``, which is called again as long as it raises ``errors``."""
    __tracebackhide__ = True
    answers: list[T] = []

    def is_done() -> bool:
        answers.append(action())
        return True

    wait_for(is_done, what, seconds=seconds, ignoring=errors)
    return answers[0]


def wait_while_changing(
    condition: Callable[[], object],
    state: Callable[[], object],
    what: str | Callable[[], object] = "",
    *,
    seconds: float = PATIENCE_SECONDS,
    pause_seconds: float = 0.5,
    ignoring: Errors = (),
) -> None:
    """Wait until ``condition`` is true, for as long as ``state`` changes within ``seconds``.

    For work that takes as long as the machine is slow. Errors of the kinds ``ignoring`` change
    nothing; without a change for ``seconds`` it fails with the last state and ``what``.
    """
    __tracebackhide__ = True
    changed = time.monotonic()
    last: object = "no state yet"
    while True:
        try:
            if condition():
                return
            if (now := state()) != last:
                changed, last = time.monotonic(), now
        except ignoring:
            pass
        if time.monotonic() > changed + seconds:
            reason = what() if callable(what) else what
            raise AssertionError(f"nothing changed for {seconds:g} s: {last} {reason}")
        time.sleep(pause_seconds)


def happens(
    condition: Callable[[], object],
    *,
    seconds: float = PATIENCE_SECONDS,
    pause_seconds: float = 0.01,
) -> bool:
    """Whether ``condition`` becomes true within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_seconds)
    return True
