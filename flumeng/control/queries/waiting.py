"""Waits until a condition holds, by polling: a watch could be lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flumeng.platform.errors import FlumengError, UnavailableError

LOOK_SECONDS = 0.5


class UnsatisfiableError(FlumengError):
    """The condition cannot hold any more until somebody acts."""


def wait_for(
    missing: Callable[[], Sequence[str]],
    *,
    timeout_seconds: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
    tell: Callable[[Sequence[str]], None] = lambda _missing: None,
) -> Sequence[str]:
    """Wait until ``missing()`` is empty or the time is up; returns its last result. ``tell`` is
    called with each change. Raises ``UnavailableError`` only when ZooKeeper is away at the end."""
    deadline = monotonic() + timeout_seconds
    told: Sequence[str] | None = None
    while True:
        try:
            still = missing()
        except UnavailableError:
            if monotonic() >= deadline:
                raise
        else:
            if still != told:
                tell(still)
                told = still
            if not still or monotonic() >= deadline:
                return still
        sleep(LOOK_SECONDS)
