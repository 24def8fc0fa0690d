"""A health threshold: unhealthy after some failures in a row, until as many successes in a row."""

from __future__ import annotations

IN_A_ROW = 3

HEALTHY, UNHEALTHY, UNREACHABLE = "", "unhealthy", "unreachable"


class HealthThreshold:
    """Tracks one target's health, ``unreachable`` when the last failures were missing answers."""

    def __init__(self) -> None:
        self.health = HEALTHY
        self._failures = 0
        self._unanswered = 0
        self._successes = 0

    def fail(self, *, unreachable: bool = False) -> None:
        self._failures += 1
        self._unanswered = self._unanswered + 1 if unreachable else 0
        self._successes = 0
        if self._failures >= IN_A_ROW:
            silent = self._unanswered >= IN_A_ROW
            self.health = UNREACHABLE if silent else UNHEALTHY

    def succeed(self, *, all_is_done: bool = False) -> None:
        """Count a success; ``all_is_done`` (nothing left to fail) restores health at once."""
        self._failures = self._unanswered = 0
        self._successes += 1
        if all_is_done or self._successes >= IN_A_ROW:
            self.health = HEALTHY
