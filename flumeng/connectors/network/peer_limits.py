"""Limits of each peer address's traffic to one source. Pure. An address that exceeded its rate is
remembered until it may send again, so reconnecting gains nothing."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable

from flumeng.connectors.network.senders import NO_LIMITS, PeerLimits
from flumeng.platform.rate_limit import RateLimit

NETWORK_BITS = 64
"""Prefix length by which IPv6 senders are counted: a sender owns its whole network."""

QUANTUM_SECONDS = 0.1
LEAST_QUANTUM_BYTES = 4096
SHORT_EVENT_BYTES = 64
MOST_DEBTORS = 10_000
"""Most remembered addresses without a connection."""


class Peer:
    __slots__ = ("_bytes", "_clock", "_events", "connections", "key")

    def __init__(self, key: str, limits: PeerLimits, clock: Callable[[], float]) -> None:
        self.key = key
        self.connections = 0
        self._clock = clock
        self._bytes, self._events = (
            RateLimit(rate, clock()) if rate is not None else None
            for rate in (limits.bytes_per_second, limits.events_per_second)
        )

    def take(self, nbytes: int, events: int) -> float:
        """Count received data; return the seconds to wait before reading more."""
        now = self._clock()
        wait = self._bytes.take(nbytes, now) if self._bytes is not None else 0.0
        return max(wait, self._events.take(events, now)) if self._events is not None else wait

    @property
    def wait_seconds(self) -> float:
        return self.take(0, 0)


class Peers:
    """Peer addresses of one source: connected ones, and those that exceeded their rate."""

    def __init__(
        self, limits: PeerLimits, clock: Callable[[], float], most_debtors: int = MOST_DEBTORS
    ) -> None:
        self.counts_events = limits.events_per_second is not None
        self.limits_rate = self.counts_events or limits.bytes_per_second is not None
        self._limits = limits
        self._clock = clock
        self._most_debtors = most_debtors
        self._most = limits.connections if limits.connections is not None else math.inf
        self._is_unlimited = limits == NO_LIMITS
        self._anybody = Peer("", limits, clock)
        self._peers: dict[str, Peer] = {}
        self._debtors: dict[str, None] = {}

    def enter(self, host: str) -> Peer | None:
        """Add a connection, to be removed by ``leave``; return None at the limit."""
        if self._is_unlimited:
            return self._anybody
        key = network(host)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = Peer(key, self._limits, self._clock)
        if peer.connections >= self._most:
            return None
        peer.connections += 1
        self._debtors.pop(key, None)
        return peer

    def leave(self, peer: Peer) -> None:
        if peer is self._anybody:
            return
        peer.connections -= 1
        if not peer.connections:
            self._debtors[peer.key] = None
            self._forget()

    def __len__(self) -> int:
        return len(self._peers)

    def check(self) -> None:
        idle = {key for key, peer in self._peers.items() if not peer.connections}
        assert idle == self._debtors.keys(), (idle, self._debtors)

    def quantum_bytes(self, most: int) -> int:
        """Return the most bytes of one read, so that the following wait stays short."""
        events, nbytes = self._limits.events_per_second, self._limits.bytes_per_second
        rates = [events * SHORT_EVENT_BYTES] if events is not None else []
        rates += [nbytes] if nbytes is not None else []
        quanta = (max(LEAST_QUANTUM_BYTES, int(rate * QUANTUM_SECONDS)) for rate in rates)
        return min([most, *quanta])

    def _forget(self) -> None:
        """Forget up to two of the oldest without a connection, if recovered or too many."""
        for key in [key for key, _ in zip(self._debtors, range(2), strict=False)]:
            if self._peers[key].wait_seconds and len(self._debtors) <= self._most_debtors:
                return
            del self._debtors[key], self._peers[key]


def network(host: str) -> str:
    """Return the address, or the IPv6 network, that counts as one sender."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> NETWORK_BITS << NETWORK_BITS, NETWORK_BITS)))
