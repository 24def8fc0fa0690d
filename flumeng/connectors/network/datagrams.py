"""Receives messages over UDP. The kernel drops and counts datagrams while reading is paused or too
slow. A busy socket is read every few milliseconds, not per datagram, which halves the CPU time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from array import array
from itertools import accumulate
from typing import Any

from flumeng.connectors.api.framing import Messages
from flumeng.connectors.api.received_block import Origin, ReceivedBlock
from flumeng.connectors.network.peers import Reception, address
from flumeng.platform.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

KERNEL_BUFFER_BYTES = 16 << 20
DATAGRAMS_AT_ONCE = 512
GATHER_SECONDS = 0.002
LAST_READS = 128  # more than the kernel's buffer holds
PEERS_REMEMBERED = 4096
DROPS_SECONDS = 1.0
"""Interval of reading the kernel's drop counter while paused."""

_MAX_DATAGRAM_BYTES = 65_536
_SO_RCVBUFFORCE = 33
_SO_MEMINFO = 55
_MEMINFO_DROPS = 8  # the ninth of its 32-bit numbers

_buffer = memoryview(bytearray(_MAX_DATAGRAM_BYTES))


class Datagrams:
    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._origins: dict[tuple[Any, ...], Origin] = {}
        self._socket: socket.socket | None = None
        self._paused = False
        self._next_read: asyncio.TimerHandle | None = None
        self._dropped = 0
        self._malformed = RateLimitedLog(log)
        self._drops_timer: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER_BYTES)
        with contextlib.suppress(PermissionError):  # beyond the system's limit for all users
            listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, KERNEL_BUFFER_BYTES)
        self._socket = listener
        self.resume()

    async def stop(self) -> None:
        if self._socket is None:
            return
        self.pause()
        for _ in range(LAST_READS):
            if not self._take(self._socket):
                break
        self._stop_watching()
        self._socket.close()
        self._socket = None

    def pause(self) -> None:
        self._paused = True
        if self._next_read is not None:
            self._next_read.cancel()
            self._next_read = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._stop_watching()
            self._watch_drops()

    def resume(self) -> None:
        if self._socket is not None:
            if self._next_read is not None:
                self._next_read.cancel()
            self._paused = False
            self._stop_watching()
            self._listen(self._socket)

    def _listen(self, bound: socket.socket) -> None:
        self._next_read = None
        asyncio.get_running_loop().add_reader(bound, self._read, bound)

    def _watch_drops(self) -> None:
        self._count_drops()
        loop = asyncio.get_running_loop()
        self._drops_timer = loop.call_later(DROPS_SECONDS, self._watch_drops)

    def _stop_watching(self) -> None:
        if self._drops_timer is not None:
            self._drops_timer.cancel()
            self._drops_timer = None
        self._count_drops()

    def _count_drops(self) -> None:
        assert self._socket is not None
        dropped = kernel_drops(self._socket)
        self._reception.context.counters.dropped += dropped - self._dropped
        self._dropped = dropped

    def _read(self, bound: socket.socket) -> None:
        """Read datagrams, and again soon; after an empty read wait for the next datagram."""
        try:
            taken = self._take(bound)
        except OSError as error:
            self.pause()
            self._reception.context.fail(error)
            return
        if self._paused:  # by the submitted datagrams
            return
        loop = asyncio.get_running_loop()
        if not taken:
            self._listen(bound)
        else:
            self._count_drops()
            loop.remove_reader(bound)
            soon = 0.0 if taken == DATAGRAMS_AT_ONCE else GATHER_SECONDS
            self._next_read = loop.call_later(soon, self._read, bound)

    def _take(self, bound: socket.socket) -> int:
        """Submit up to a few hundred datagrams; return their number."""
        received = self._receive(bound)
        for peer, datagrams in received.items():
            self._submit(peer, datagrams)
        return sum(map(len, received.values()))

    def _submit(self, peer: tuple[Any, ...], datagrams: list[bytes]) -> None:
        context, cutter = self._reception.context, self._reception.cutter
        if cutter is None:
            ends = array("q", accumulate(len(datagram) for datagram in datagrams))
            blocks = [Messages(b"".join(datagrams), (array("q", [0, *ends[:-1]]), ends))]
        else:
            blocks = []
            for datagram in datagrams:
                cut = cutter()
                blocks += [*cut.feed(datagram, len(datagram)), *cut.end()]
                context.counters.discarded_bytes += cut.skipped
                if cut.malformed:
                    context.counters.malformed += 1
                    self._malformed.warning("sender %s sent %s", address(peer), cut.complaint)
        for messages in blocks:
            sender = self._origin(peer)
            if messages.incomplete:
                sender = self._reception.origin(peer, truncated="true")
            context.submit(
                ReceivedBlock(messages.data, sender, context.clock_us(), messages.bounds)
            )

    def _receive(self, bound: socket.socket) -> dict[tuple[Any, ...], list[bytes]]:
        received: dict[tuple[Any, ...], list[bytes]] = {}
        for _ in range(DATAGRAMS_AT_ONCE):
            try:
                size, peer = bound.recvfrom_into(_buffer)
            except BlockingIOError:
                break
            received.setdefault(peer, []).append(bytes(_buffer[:size]))
        return received

    def _origin(self, peer: tuple[Any, ...]) -> Origin:
        if len(self._origins) >= PEERS_REMEMBERED:
            self._origins.clear()
        if peer not in self._origins:
            self._origins[peer] = self._reception.origin(peer)
        return self._origins[peer]


def kernel_drops(bound: socket.socket) -> int:
    """Return the number of datagrams that the socket's buffer dropped (Linux)."""
    meminfo = bound.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4 * (_MEMINFO_DROPS + 1))
    return int.from_bytes(meminfo[4 * _MEMINFO_DROPS :], sys.byteorder)
