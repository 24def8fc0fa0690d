"""Wait until something holds. Looks again and again: a watch could be lost, a look cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flumeng.platform.errors import FlumengError, UnavailableError

LOOK_SECONDS = 0.5


class UnsatisfiableError(FlumengError):
    """What is waited for cannot come any more: somebody must act first."""


def wait_for(
    missing: Callable[[], Sequence[str]],
    *,
    timeout_seconds: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
    tell: Callable[[Sequence[str]], None] = lambda _missing: None,
) -> Sequence[str]:
    """Until ``missing()`` names nothing more, or the time is up; gives what it named last.

    ``tell`` gets it whenever it has changed. ZooKeeper may be away meanwhile: ``UnavailableError``
    is raised only when it is away at the end.
    """
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
