"""Accepts TLS connections, with up to ``MOST_HALF_OPEN`` handshakes at a time, a quarter of them
per address. A further one ends the oldest, of its address or of all, so silent clients cannot lock
out others. TLS starts with a client's first bytes: until then a connection costs almost nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

from flumeng.connectors.api.counters import Counters
from flumeng.connectors.network.peer_limits import network
from flumeng.connectors.network.peers import address
from flumeng.connectors.network.tls import ServerTls
from flumeng.journal.log.disk import OUT_OF_DESCRIPTORS
from flumeng.platform.listening import is_reserved
from flumeng.platform.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
"""Time limit for the first bytes, and again for the handshake."""

MOST_HALF_OPEN = 1024
MOST_OF_ONE_ADDRESS = MOST_HALF_OPEN // 4
ACCEPTS_AT_ONCE = 16
"""Most connections accepted at once: each handshake takes more than a millisecond of CPU."""

NO_DESCRIPTORS_SECONDS = 0.1
_NO_CERTIFICATE = "peer did not return a certificate"


class Handshakes:
    """A listening TLS socket. ``make`` creates a protocol, connected after the handshake."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ServerTls,
        make: Callable[[], asyncio.BaseProtocol],
        counters: Counters,
        *,
        most_half_open: int = MOST_HALF_OPEN,
        most_of_one_address: int = MOST_OF_ONE_ADDRESS,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self._most, self._most_of_one = most_half_open, most_of_one_address
        self._seconds = handshake_seconds
        self._listener = listener
        self._tls = tls
        self._make = make
        self._counters = counters
        self._half_open: dict[socket.socket, _HalfOpen] = {}
        self._by_address: dict[str, dict[socket.socket, None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._logs: dict[str, RateLimitedLog] = {}
        """Rate-limited logs by message; TLS has few different messages."""
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def close(self) -> None:
        """Close the listener, and end all handshakes. Idempotent."""
        if self._again is not None:
            self._again.cancel()
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        while self._half_open:
            self._end(next(iter(self._half_open)))

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def check(self) -> None:
        by_address = {taken: key for key, same in self._by_address.items() for taken in same}
        assert by_address == {taken: half.key for taken, half in self._half_open.items()}
        assert all(self._by_address.values()), self._by_address
        assert len(self._half_open) <= self._most

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                taken, peer = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                if error.errno not in (*OUT_OF_DESCRIPTORS, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._accept_later()
                return
            self._begin(taken, peer)

    def _accept_later(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._again = loop.call_later(
            NO_DESCRIPTORS_SECONDS, loop.add_reader, self._listener, self._accept
        )

    def _begin(self, taken: socket.socket, peer: tuple[Any, ...]) -> None:
        if self._tls.context is None or is_reserved(taken.fileno()):
            self._counters.refused += 1
            taken.close()
            return
        taken.setblocking(False)
        key = network(peer[0])
        same = self._by_address.get(key, {})
        if len(same) >= self._most_of_one:
            self._give_up(next(iter(same)))
        elif len(self._half_open) >= self._most:
            self._give_up(next(iter(self._half_open)))
        self._by_address.setdefault(key, {})[taken] = None
        loop = asyncio.get_running_loop()
        silence = loop.call_later(self._seconds, self._on_silence, taken)
        self._half_open[taken] = _HalfOpen(key, silence)
        loop.add_reader(taken, self._on_hello, taken, peer)

    def _on_silence(self, taken: socket.socket) -> None:
        self._counters.idle += 1
        self._end(taken)

    def _on_hello(self, taken: socket.socket, peer: tuple[Any, ...]) -> None:
        context = self._tls.context
        if context is None:
            self._give_up(taken)
            return
        key, silence = self._half_open[taken]
        assert silence is not None
        silence.cancel()
        asyncio.get_running_loop().remove_reader(taken)
        self._half_open[taken] = _HalfOpen(key)
        task = asyncio.create_task(self._shake_hands(taken, peer, context))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shake_hands(
        self, taken: socket.socket, peer: tuple[Any, ...], context: ssl.SSLContext
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, taken, ssl=context, ssl_handshake_timeout=self._seconds
            )
        except ssl.SSLCertVerificationError as error:
            self._counters.unauthorized += 1
            self._warn(peer, f"is rejected: {error.verify_message}")
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).lower().replace("_", " ")
            if reason == _NO_CERTIFICATE:
                self._counters.unauthorized += 1
                self._warn(peer, "is rejected: the sender sent no certificate")
            else:
                self._counters.malformed += 1
                self._warn(peer, f"failed the TLS handshake: {reason}")
        except ConnectionAbortedError:
            self._counters.idle += 1
        except OSError:  # closed by the peer, or given up
            pass
        finally:
            self._forget(taken)

    def _warn(self, peer: tuple[Any, ...], message: str) -> None:
        rare = self._logs.setdefault(message, RateLimitedLog(log))
        rare.warning("sender %s %s", address(peer), message)

    def _give_up(self, taken: socket.socket) -> None:
        self._counters.refused += 1
        self._end(taken)

    def _end(self, taken: socket.socket) -> None:
        if self._forget(taken):
            asyncio.get_running_loop().remove_reader(taken)
            taken.close()
            return
        with contextlib.suppress(OSError):  # closed by the peer
            taken.shutdown(socket.SHUT_RDWR)

    def _forget(self, taken: socket.socket) -> bool:
        """Remove a handshake; return whether the client had not sent anything yet."""
        key, silence = self._half_open.pop(taken, _HalfOpen(""))
        if key:
            same = self._by_address[key]
            del same[taken]
            if not same:
                del self._by_address[key]
        if silence is not None:
            silence.cancel()
        return silence is not None


class _HalfOpen(NamedTuple):
    """A connection before the end of its handshake: address, and timer until the first bytes."""

    key: str
    silence: asyncio.TimerHandle | None = None
