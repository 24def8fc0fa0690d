"""Which members of a group are available, by the batches before.

Kept in the driver for all tasks of a flow, across claims: a member that does not answer costs one
time-out a back-off, however many splits and executors there are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass
class _Member:
    """``until``: the end of its back-off. ``reason``: of its last failure, empty after a
    success."""

    failures: int = 0
    until: float = 0.0
    reason: str = ""


class Availability:
    """Of members by their numbers; thread-safe. ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        members: int,
        backoff_seconds: float,
        max_backoff_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._members = [_Member() for _ in range(members)]
        self._backoff_seconds = backoff_seconds
        self._max_backoff_seconds = max_backoff_seconds
        self._clock = clock
        self._turn = 0
        self._lock = threading.Lock()

    def ready(self) -> tuple[int, ...]:
        """The members without a back-off now."""
        with self._lock:
            now = self._clock()
            return tuple(n for n, member in enumerate(self._members) if member.until <= now)

    def failing(self) -> dict[int, str]:
        """The members that have failed since their last success, and why."""
        with self._lock:
            return {n: one.reason for n, one in enumerate(self._members) if one.failures}

    def take_turns(self, count: int) -> int:
        """The number of the first of so many turns."""
        with self._lock:
            first = self._turn
            self._turn += count
            return first

    def note(self, took: Collection[int], failed: Mapping[int, str]) -> None:
        """Note the outcome of a batch. A failure during a back-off, from a concurrent batch, does
        not count twice."""
        with self._lock:
            now = self._clock()
            for number in set(took) - failed.keys():
                self._members[number] = _Member()
            for number, reason in failed.items():
                member = self._members[number]
                member.reason = reason
                if member.until <= now:
                    seconds = self._backoff_seconds * 2.0 ** min(member.failures, 60)
                    member.until = now + min(seconds, self._max_backoff_seconds)
                    member.failures += 1


@lru_cache(maxsize=4096)
def of_group(
    key: Hashable,  # noqa: ARG001  told apart by the cache
    members: int,
    backoff_seconds: float,
    max_backoff_seconds: float,
) -> Availability:
    """The process's availability of the group that ``key`` names."""
    return Availability(members, backoff_seconds, max_backoff_seconds)
