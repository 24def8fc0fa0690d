"""Limits of one address, which it cannot avoid by connecting again."""

from __future__ import annotations

import pytest

from flumeng.connectors.network.peer_limits import Peers, network
from flumeng.connectors.network.senders import PeerLimits
from tests.testkit.clock import Clock

clock = Clock(0.0)


@pytest.fixture(autouse=True)
def begin() -> None:
    clock.now = 100.0


def limited(
    connections: int | None = None, nbytes: int | None = None, events: int | None = None
) -> Peers:
    limits = PeerLimits(connections=connections, bytes_per_second=nbytes, events_per_second=events)
    return Peers(limits, clock)


def test_connections_of_one_address_leave_room_for_others() -> None:
    peers = limited(connections=2)
    first, second = peers.enter("10.0.0.1"), peers.enter("10.0.0.1")
    assert first is not None
    assert first is second
    assert peers.enter("10.0.0.1") is None
    assert peers.enter("10.0.0.2") is not None
    peers.leave(first)
    assert peers.enter("10.0.0.1") is first


def test_rate_is_that_of_all_connections_of_an_address() -> None:
    peers = limited(nbytes=10_000)
    one, other = peers.enter("10.0.0.1"), peers.enter("10.0.0.1")
    stranger = peers.enter("10.0.0.2")
    assert one is not None
    assert other is not None
    assert stranger is not None
    assert one.take(20_000, 5) == pytest.approx(2.0)
    assert other.take(10_000, 5) == pytest.approx(3.0)
    assert stranger.wait_seconds == 0.0
    clock.now += 3.0
    assert one.wait_seconds == 0.0


def test_events_have_a_rate_limit_of_their_own() -> None:
    peers = limited(events=10)
    peer = peers.enter("10.0.0.1")
    assert peer is not None
    assert peers.counts_events
    assert peer.take(10**9, 50) == pytest.approx(5.0)


def test_reconnected_peer_still_waits() -> None:
    peers = limited(nbytes=1024)
    peer = peers.enter("10.0.0.1")
    assert peer is not None
    peer.take(10_240, 1)
    peers.leave(peer)
    again = peers.enter("10.0.0.1")
    assert again is not None
    assert again.wait_seconds == pytest.approx(10.0)
    peers.check()


def test_peer_without_connections_and_debts_is_forgotten() -> None:
    peers = Peers(PeerLimits(connections=1), clock, most_debtors=10)
    for number in range(1000):
        peer = peers.enter(f"10.0.{number // 256}.{number % 256}")
        assert peer is not None
        peers.leave(peer)
        peers.check()
    assert len(peers) <= 1
    peers = Peers(PeerLimits(bytes_per_second=1024), clock, most_debtors=10)
    for number in range(1000):
        peer = peers.enter(f"10.0.{number // 256}.{number % 256}")
        assert peer is not None
        peer.take(10**9, 1)
        peers.leave(peer)
        peers.check()
    assert len(peers) <= 11, "debtors take bounded memory"


def test_no_peer_is_kept_when_nothing_is_limited() -> None:
    peers = limited()
    one, other = peers.enter("10.0.0.1"), peers.enter("10.0.0.2")
    assert one is not None
    assert one is other
    assert one.take(10**12, 10**9) == 0.0
    assert not peers.limits_rate
    assert len(peers) == 0


def test_ipv6_network_is_one_peer() -> None:
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("::ffff:10.0.0.1") == network("10.0.0.1") == "10.0.0.1"
    assert network("fe80::1%eth0") == network("fe80::2%eth0")


@pytest.mark.parametrize(("rate", "nbytes"), [(None, 1 << 20), (1024, 4096), (10**9, 1 << 20)])
def test_slow_peer_is_read_in_small_pieces(rate: int | None, nbytes: int) -> None:
    assert limited(nbytes=rate).quantum_bytes(1 << 20) == nbytes


def test_short_events_are_read_in_small_pieces_too() -> None:
    assert limited(events=10).quantum_bytes(1 << 20) == 4096
    assert limited(events=10_000).quantum_bytes(1 << 20) == 64_000
    assert limited(events=10_000, nbytes=1024).quantum_bytes(1 << 20) == 4096
