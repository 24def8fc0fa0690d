"""The lease clock: proofs that a session lives, and the time at which owned work must have
stopped."""

from __future__ import annotations

from math import inf

import pytest

from flumeng.control.zookeeper.lease import Lease
from tests.testkit.clock import Clock

PING = -2
EVENT = -1


@pytest.fixture
def lease(clock: Clock) -> Lease:
    """The lease of a session with a timeout of 9 s, accepted at once."""
    lease = Lease(clock)
    lease.connecting()
    lease.granted(9.0)
    return lease


def test_no_lease_exists_before_a_server_has_accepted_the_session(clock: Clock) -> None:
    lease = Lease(clock)
    assert lease.left_seconds <= 0
    lease.connecting()
    clock.now += 1
    assert lease.left_seconds <= 0


def test_lease_is_over_after_two_thirds_of_the_negotiated_timeout(
    lease: Lease, clock: Clock
) -> None:
    assert lease.left_seconds == 6.0
    clock.now += 6.0
    assert lease.left_seconds == 0.0


def test_lease_counts_from_the_sending_of_the_answered_request(lease: Lease, clock: Clock) -> None:
    """A process that was frozen reads a reply of long ago: its session may be over for long."""
    clock.now += 3
    lease.sent(PING)
    clock.now += 60
    lease.answered(PING)
    assert lease.left_seconds == 6.0 - 60


def test_lease_counts_from_the_start_of_a_slow_connect(clock: Clock) -> None:
    lease = Lease(clock)
    lease.connecting()
    clock.now += 4
    lease.granted(9.0)
    assert lease.left_seconds == 2.0


def test_request_without_an_answer_proves_nothing(lease: Lease, clock: Clock) -> None:
    clock.now += 5
    lease.sent(1)
    lease.answered(EVENT)
    assert lease.left_seconds == 1.0


def test_answer_counts_for_the_older_of_two_pings(lease: Lease, clock: Clock) -> None:
    clock.now += 1
    lease.sent(PING)
    clock.now += 1
    lease.sent(PING)
    lease.answered(PING)
    assert lease.left_seconds == 5.0


def test_late_reply_does_not_shorten_the_lease(lease: Lease, clock: Clock) -> None:
    lease.sent(1)
    clock.now += 1
    lease.sent(2)
    lease.answered(2)
    lease.answered(1)
    assert lease.left_seconds == 6.0


def test_expired_session_has_no_lease(lease: Lease) -> None:
    lease.connecting()
    lease.granted(0.0)
    assert lease.left_seconds <= 0


def test_reconnect_restores_the_lease_and_forgets_open_requests(lease: Lease, clock: Clock) -> None:
    lease.sent(1)
    clock.now += 7
    assert lease.patience_seconds() == -1.0
    lease.connecting()
    lease.granted(9.0)
    assert lease.left_seconds == 6.0
    assert lease.patience_seconds() == inf


def test_connection_is_given_up_when_requests_get_no_answer(lease: Lease, clock: Clock) -> None:
    """However often it is asked: kazoo would wait for ever as long as it sends."""
    clock.now += 60
    assert lease.patience_seconds() == inf, "nothing was asked"
    for number in range(6):
        lease.sent(number)
        clock.now += 1
    assert lease.patience_seconds() == 0.0
    lease.answered(0)
    assert lease.patience_seconds() == 6.0, "it answers, if late"


def test_server_is_waited_for_without_limit_before_the_timeout_is_known(clock: Clock) -> None:
    lease = Lease(clock)
    lease.connecting()
    clock.now += 3
    assert lease.patience_seconds() == inf
