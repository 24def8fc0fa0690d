"""Connections of viewers: how many, and how long each may take to ask and to read.

At the limit a new connection takes the place of the oldest that waits for a request. So clients
that open connections and send nothing, or little by little, lock out no others.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from flumeng.console.who.gate import HEAD_BYTES
from flumeng.console.who.proofs import CERTIFICATE

MOST = 1000
MOST_OF_ONE_ADDRESS = 250
"""Of one address that is not loopback: a proxy on this host sends for many people."""
HEAD_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0
READ_SECONDS = 30.0
"""A viewer that takes nothing of an answer for so long is cut off."""
ACCEPTS_AT_ONCE = 16
NO_DESCRIPTORS_SECONDS = 0.1


class ConsoleProtocol(H11Protocol):
    """A connection: uvicorn's, with limits. Hands the client's certificate to the application."""

    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _unread = 0
    is_connected = False
    """Whether TLS has been agreed on; always True without TLS."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.is_connected = True
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(True) if tls is not None else None
        self.app_state = {CERTIFICATE: certificate}
        self._expect_head()
        self._read_timer = self.loop.call_later(READ_SECONDS, self._watch_reader)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    @property
    def is_between(self) -> bool:
        """Whether no request has begun that is not yet answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_idle(self) -> bool:
        """Whether the connection waits for its viewer."""
        if not self.is_connected:
            return False
        unread = self.transport.get_write_buffer_size()
        return self.is_between or self.cycle.more_body or unread > 0

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if self._head_timer is None and self.is_between:
            self._expect_head()
        super().data_received(data)
        if self.cycle is not before and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        status, text = 400, msg
        if len(self.conn.trailing_data[0]) > HEAD_BYTES:
            status, text = 431, f"more than {HEAD_BYTES} bytes of headers"
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=text.encode("ascii")),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _watch_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread and unread >= self._unread > 0:
            self.transport.abort()
            return
        self._unread = unread
        self._read_timer = self.loop.call_later(READ_SECONDS, self._watch_reader)


class Connections:
    """A listening socket. ``make`` creates a protocol; ``tls``: the settings of a new connection,
    None without TLS. ``open`` are the protocols of all connections, oldest first."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], ConsoleProtocol],
        tls: Callable[[], ssl.SSLContext] | None,
        *,
        most: int = MOST,
        most_of_one_address: int = MOST_OF_ONE_ADDRESS,
    ) -> None:
        self._listener, self._make, self._tls = listener, make, tls
        self._most, self._most_of_one = most, most_of_one_address
        self._open: dict[socket.socket, tuple[str, ConsoleProtocol]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more connections. Idempotent."""
        if self._again is not None:
            self._again.cancel()
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                taken, peer = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._evict(list(self._open))
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                self._again = loop.call_later(
                    NO_DESCRIPTORS_SECONDS, loop.add_reader, self._listener, self._accept
                )
                return
            self._take(taken, str(peer[0]))

    def _take(self, taken: socket.socket, address: str) -> None:
        """Begin a connection, in place of the oldest idle one at the limit."""
        self._forget_closed()
        own = [key for key, (host, _) in self._open.items() if host == address]
        limited = not address.startswith("127.") and address != "::1"
        if limited and len(own) >= self._most_of_one and not self._evict(own):
            taken.close()
            return
        if len(self._open) >= self._most and not self._evict(self._of_busiest()):
            taken.close()
            return
        taken.setblocking(False)
        protocol = self._make()
        self._open[taken] = (address, protocol)
        task = asyncio.get_running_loop().create_task(self._begin(taken, protocol))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, taken: socket.socket, protocol: ConsoleProtocol) -> None:
        loop = asyncio.get_running_loop()
        secure: dict[str, Any] = {}
        if self._tls is not None:
            secure = {"ssl": self._tls(), "ssl_handshake_timeout": HANDSHAKE_SECONDS}
        try:
            await loop.connect_accepted_socket(lambda: protocol, taken, **secure)
        except (OSError, ssl.SSLError):  # a stranger's certificate, or it left
            with suppress(OSError):
                taken.close()

    def _of_busiest(self) -> list[socket.socket]:
        """Return the connections of the address with most of them."""
        counts = Counter(host for host, _ in self._open.values())
        busiest = counts.most_common(1)[0][0]
        return [key for key, (host, _) in self._open.items() if host == busiest]

    def _evict(self, keys: list[socket.socket]) -> bool:
        """End the oldest of these connections that waits for a request, or takes no answer."""
        for key in keys:
            protocol = self._open[key][1]
            if not protocol.is_connected:
                with suppress(OSError):
                    key.shutdown(socket.SHUT_RDWR)
            elif protocol.is_idle:
                protocol.transport.abort()
            else:
                continue
            del self._open[key]
            return True
        return False

    def _forget_closed(self) -> None:
        for key in [key for key in self._open if key.fileno() < 0]:
            del self._open[key]
