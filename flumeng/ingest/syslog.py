"""The syslog source: messages over TCP (RFC 6587) or UDP (RFC 5426), stored whole as received.

What a message means is the ``parse`` filter's business.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from flumeng.errors import UserError
from flumeng.ingest.datagrams import Datagrams
from flumeng.ingest.peers import address
from flumeng.ingest.source import Inlet, Source
from flumeng.ingest.streams import BACKLOG, Streams
from flumeng.spec.sources import Syslog

_REASONS = {
    errno.EADDRINUSE: "the port is in use",
    errno.EACCES: "not permitted; ports below 1024 need the capability CAP_NET_BIND_SERVICE",
    errno.EADDRNOTAVAIL: "this host does not have that address",
}


class SyslogSource(Source):
    """Listens on one address, over the protocol of its options."""

    def __init__(self, options: Syslog, inlet: Inlet) -> None:
        self._options = options
        self._receiver: Streams | Datagrams = (
            Streams(options, inlet) if options.protocol == "tcp" else Datagrams(options, inlet)
        )

    async def start(self) -> None:
        listener = await _listen(self._options)
        self.addresses = (address(listener.getsockname()),)
        await self._receiver.start(listener)

    async def stop(self) -> None:
        await self._receiver.stop()

    def pause(self) -> None:
        self._receiver.pause()

    def resume(self) -> None:
        self._receiver.resume()


async def _listen(options: Syslog) -> socket.socket:
    """A bound socket that does not block. Raises UserError."""
    host, _, port = options.listen.rpartition(":")
    kind = socket.SOCK_STREAM if options.protocol == "tcp" else socket.SOCK_DGRAM
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]") or None, int(port), type=kind, flags=socket.AI_PASSIVE
        )
        return _bind(found[0][0], kind, found[0][4])
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror)
        raise UserError(
            f"cannot listen on {options.listen} ({options.protocol}): {reason}"
        ) from error


def _bind(family: int, kind: socket.SocketKind, place: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, kind)
    try:
        if kind is socket.SOCK_STREAM:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit it
        bound.setblocking(False)
        bound.bind(place)
        if kind is socket.SOCK_STREAM:
            bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
