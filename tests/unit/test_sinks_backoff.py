"""How long a stage retries before the task reports the error."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from flumeng.connectors.api.backoff import FRESH_SECONDS, Backoff
from flumeng.platform.errors import UnavailableError

REFUSED = UnavailableError("Connection refused")
HANG_SECONDS = 10.0
"""A batch among others is reported as hung after that."""


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def seconds_until_given_up(backoff: Backoff, clock: Clock, attempt_seconds: float = 0.0) -> float:
    began = clock.now
    with pytest.raises(UnavailableError, match="refused"):
        while True:
            clock.now += attempt_seconds
            backoff.pause(REFUSED)
    return clock.now - began


@pytest.mark.parametrize("attempt_seconds", [0.0, 1.0, 5.0])
def test_error_of_server_that_has_taken_nothing_is_known_before_batch_hangs(
    attempt_seconds: float,
) -> None:
    clock = Clock()
    backoff = Backoff(30.0, None, clock, clock.sleep)
    assert seconds_until_given_up(backoff, clock, attempt_seconds) < HANG_SECONDS


def test_server_that_has_taken_something_is_retried_for_longer() -> None:
    clock = Clock()
    backoff = Backoff(30.0, None, clock, clock.sleep)
    backoff.progressed()
    assert seconds_until_given_up(backoff, clock) > 20.0


def test_given_patience_counts_from_beginning_and_from_progress() -> None:
    clock = Clock()
    backoff = Backoff(30.0, 10.0, clock, clock.sleep)
    assert FRESH_SECONDS < seconds_until_given_up(backoff, clock) <= 10.0
    backoff.progressed()
    assert FRESH_SECONDS < seconds_until_given_up(backoff, clock) <= 10.0


def test_server_that_says_when_to_come_again_is_asked_then() -> None:
    clock = Clock()
    backoff = Backoff(30.0, None, clock, clock.sleep)
    for _ in range(5):
        backoff.pause(REFUSED, least_seconds=5.0)
    assert 25.0 <= clock.now <= 30.0
    with pytest.raises(UnavailableError):
        backoff.pause(REFUSED, least_seconds=10.0)


def test_server_that_has_asked_for_a_pause_is_there() -> None:
    clock = Clock()
    backoff = Backoff(30.0, None, clock, clock.sleep)
    backoff.pause(REFUSED, least_seconds=FRESH_SECONDS)
    backoff.pause(REFUSED)
    assert seconds_until_given_up(backoff, clock) <= FRESH_SECONDS
