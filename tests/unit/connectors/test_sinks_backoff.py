"""How long a stage retries before the task reports the error."""

from __future__ import annotations

import pytest

from flumeng.connectors.api.backoff import FRESH_SECONDS, Backoff
from flumeng.platform.errors import UnavailableError
from tests.testkit.clock import Clock

REFUSED = UnavailableError("Connection refused")
HANG_SECONDS = 10.0
"""A batch in a shared job is reported as hung after so long."""


def seconds_until_given_up(backoff: Backoff, clock: Clock, attempt_seconds: float = 0.0) -> float:
    began = clock.now
    with pytest.raises(UnavailableError, match="refused"):
        while True:
            clock.now += attempt_seconds
            backoff.pause(REFUSED)
    return clock.now - began


@pytest.mark.parametrize("attempt_seconds", [0.0, 1.0, 5.0])
def test_error_of_a_server_that_took_nothing_is_reported_before_a_batch_hangs(
    attempt_seconds: float,
) -> None:
    clock = Clock(0.0)
    backoff = Backoff(30.0, None, clock, clock.sleep)
    assert seconds_until_given_up(backoff, clock, attempt_seconds) < HANG_SECONDS


def test_server_that_took_something_is_retried_for_longer() -> None:
    clock = Clock(0.0)
    backoff = Backoff(30.0, None, clock, clock.sleep)
    backoff.progressed()
    assert seconds_until_given_up(backoff, clock) > 20.0


def test_given_patience_counts_from_beginning_and_from_progress() -> None:
    clock = Clock(0.0)
    backoff = Backoff(30.0, 10.0, clock, clock.sleep)
    assert FRESH_SECONDS < seconds_until_given_up(backoff, clock) <= 10.0
    backoff.progressed()
    assert FRESH_SECONDS < seconds_until_given_up(backoff, clock) <= 10.0


def test_retry_after_of_a_server_is_respected() -> None:
    clock = Clock(0.0)
    backoff = Backoff(30.0, None, clock, clock.sleep)
    for _ in range(5):
        backoff.pause(REFUSED, least_seconds=5.0)
    assert 25.0 <= clock.now <= 30.0
    with pytest.raises(UnavailableError):
        backoff.pause(REFUSED, least_seconds=10.0)


def test_retry_after_counts_as_an_answer_of_the_server() -> None:
    clock = Clock(0.0)
    backoff = Backoff(30.0, None, clock, clock.sleep)
    backoff.pause(REFUSED, least_seconds=FRESH_SECONDS)
    backoff.pause(REFUSED)
    assert seconds_until_given_up(backoff, clock) <= FRESH_SECONDS
