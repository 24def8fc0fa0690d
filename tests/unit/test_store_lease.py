"""The lease clock: what proves that a session lives, and when owned work must have stopped."""

from __future__ import annotations

from math import inf

import pytest

from flumeng.control.zookeeper.lease import Lease

PING = -2
EVENT = -1


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Lease:
    """Of a session with a timeout of 9 s, accepted at once."""
    lease = Lease(clock)
    lease.connecting()
    lease.granted(9.0)
    return lease


def test_before_a_server_has_accepted_the_session_there_is_none(clock: Clock) -> None:
    lease = Lease(clock)
    assert lease.left_seconds <= 0
    lease.connecting()
    clock.now += 1
    assert lease.left_seconds <= 0


def test_it_is_over_after_two_thirds_of_the_negotiated_timeout(lease: Lease, clock: Clock) -> None:
    assert lease.left_seconds == 6.0
    clock.now += 6.0
    assert lease.left_seconds == 0.0


def test_it_counts_from_the_sending_of_what_was_answered(lease: Lease, clock: Clock) -> None:
    """A process that was frozen reads a reply of long ago: its session may be over for long."""
    clock.now += 3
    lease.sent(PING)
    clock.now += 60
    lease.answered(PING)
    assert lease.left_seconds == 6.0 - 60


def test_a_slow_connect_counts_from_its_beginning(clock: Clock) -> None:
    lease = Lease(clock)
    lease.connecting()
    clock.now += 4
    lease.granted(9.0)
    assert lease.left_seconds == 2.0


def test_a_request_that_is_not_answered_proves_nothing(lease: Lease, clock: Clock) -> None:
    clock.now += 5
    lease.sent(1)
    lease.answered(EVENT)
    assert lease.left_seconds == 1.0


def test_of_two_pings_the_older_counts(lease: Lease, clock: Clock) -> None:
    clock.now += 1
    lease.sent(PING)
    clock.now += 1
    lease.sent(PING)
    lease.answered(PING)
    assert lease.left_seconds == 5.0


def test_a_late_reply_takes_nothing_back(lease: Lease, clock: Clock) -> None:
    lease.sent(1)
    clock.now += 1
    lease.sent(2)
    lease.answered(2)
    lease.answered(1)
    assert lease.left_seconds == 6.0


def test_a_session_that_the_server_says_is_over_has_no_lease(lease: Lease) -> None:
    lease.connecting()
    lease.granted(0.0)
    assert lease.left_seconds <= 0


def test_a_reconnect_gives_it_back_and_forgets_what_was_asked_before(
    lease: Lease, clock: Clock
) -> None:
    lease.sent(1)
    clock.now += 7
    assert lease.patience_seconds() == -1.0
    lease.connecting()
    lease.granted(9.0)
    assert lease.left_seconds == 6.0
    assert lease.patience_seconds() == inf


def test_a_connection_is_given_up_when_something_is_asked_and_nothing_answered(
    lease: Lease, clock: Clock
) -> None:
    """However often it is asked: kazoo would wait for ever as long as it sends."""
    clock.now += 60
    assert lease.patience_seconds() == inf, "nothing was asked"
    for number in range(6):
        lease.sent(number)
        clock.now += 1
    assert lease.patience_seconds() == 0.0
    lease.answered(0)
    assert lease.patience_seconds() == 6.0, "it answers, if late"


def test_before_the_timeout_is_known_a_server_is_waited_for_as_kazoo_does(clock: Clock) -> None:
    lease = Lease(clock)
    lease.connecting()
    clock.now += 3
    assert lease.patience_seconds() == inf
