"""Syslog over UDP: each datagram is one message.

What arrives while reading is paused, or faster than it is read, the kernel drops: UDP cannot hold
its senders back.
"""

from __future__ import annotations

import asyncio
import socket
from array import array
from itertools import accumulate
from typing import Any

from flumeng.ingest.chunk import Chunk, LineRules, Origin
from flumeng.ingest.peers import origin
from flumeng.ingest.source import Inlet
from flumeng.spec.sources import Syslog

KERNEL_BUFFER_BYTES = 4 << 20
DATAGRAMS_AT_ONCE = 256
LAST_READS = 64  # more than the kernel's buffer holds
PEERS_REMEMBERED = 4096
_MAX_DATAGRAM_BYTES = 65_536


class Datagrams:
    """A bound socket, read a few hundred datagrams at a time."""

    def __init__(self, options: Syslog, inlet: Inlet) -> None:
        self._inlet = inlet
        self._rules = LineRules(options.max_line_bytes, b"\n\r\0", keep_empty=False)
        self._buffer = memoryview(bytearray(_MAX_DATAGRAM_BYTES))
        self._origins: dict[tuple[Any, ...], Origin] = {}
        self._socket: socket.socket | None = None

    async def start(self, listener: socket.socket) -> None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER_BYTES)
        self._socket = listener
        self.resume()

    async def stop(self) -> None:
        if self._socket is None:
            return
        self.pause()
        for _ in range(LAST_READS):
            self._read(self._socket)
        self._socket.close()
        self._socket = None

    def pause(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)

    def resume(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._read, self._socket)

    def _read(self, bound: socket.socket) -> None:
        try:
            received = self._receive(bound)
        except OSError as error:
            self.pause()
            self._inlet.fail(error)
            return
        for peer, messages in received.items():
            ends = array("q", accumulate(len(message) for message in messages))
            starts = array("q", [0, *ends[:-1]])
            chunk = Chunk(
                b"".join(messages), self._origin(peer), self._inlet.clock_us(), (starts, ends)
            )
            self._inlet.submit(chunk)

    def _receive(self, bound: socket.socket) -> dict[tuple[Any, ...], list[bytes]]:
        """What is there, at most a few hundred datagrams, by sender."""
        received: dict[tuple[Any, ...], list[bytes]] = {}
        for _ in range(DATAGRAMS_AT_ONCE):
            try:
                size, peer = bound.recvfrom_into(self._buffer)
            except BlockingIOError:
                break
            received.setdefault(peer, []).append(bytes(self._buffer[:size]))
        return received

    def _origin(self, peer: tuple[Any, ...]) -> Origin:
        if len(self._origins) >= PEERS_REMEMBERED:
            self._origins.clear()
        if peer not in self._origins:
            self._origins[peer] = origin(peer, self._rules)
        return self._origins[peer]
