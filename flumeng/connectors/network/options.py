"""The options of the sources ``syslog``, ``tcp`` and ``udp``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flumeng.config.component import SourceOptions
from flumeng.connectors.api.line_options import max_line_bytes
from flumeng.connectors.network.senders import NO_LIMITS, PeerLimits
from flumeng.connectors.network.server_tls import Tls
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.quantities import check_address

_STREAM_ARRIVAL = (
    "senders get no acknowledgement: data in flight when a connection or the worker fails is "
    "lost, unless they send it again"
)
_DATAGRAM_ARRIVAL = (
    "datagrams that the network or a full kernel buffer drops are lost, and those that arrive "
    "while no worker listens"
)
_FRAMING_DOC = (
    "newlines, a length of four bytes (big-endian) before each, or its length in digits and a "
    "space (RFC 6587)."
)
LISTEN_DOC = "The address to listen on. Port 0 takes a free one."
TLS_DOC = "Serve over TLS."
PER_PEER_DOC = "Limits of one peer address, so that it does not crowd out others."
_CONNECTIONS_DOC = (
    "Limit of TCP connections in each ingest worker; further ones are closed at once and "
    "counted. An idle one takes 4 KiB of memory, with TLS 50 KiB."
)
_IDLE_DOC = "A TCP connection without data for this long is closed; by default none is."


def max_connections() -> Any:
    return option(doc=_CONNECTIONS_DOC, between=(1, 10**6), default=10_000)


def idle_seconds() -> Any:
    return option(doc=_IDLE_DOC, between=(0.1, 604_800), default=None)


def claim(protocol: str, listen: str) -> Iterator[tuple[str, str]]:
    """Yield the address and port, which only one source may use; port 0 is always free."""
    if not listen.endswith(":0"):
        yield "listen", f"{protocol} {listen}"


def listening(listen: str, tls: Tls | None) -> Iterator[Need]:
    yield "listen", listen
    if tls is not None:
        for path in tls.files():
            yield "path", path


@dataclass(frozen=True)
class Syslog(SourceOptions):
    """Receives syslog messages (RFC 5424 and RFC 3164) over TCP, TLS (RFC 5425) or UDP.

    An event's body is the message as received, without its framing. Attributes: `source`, `peer`,
    `client`.
    """

    implementation: ClassVar[str] = "flumeng.connectors.network.sockets:SyslogSource"

    listen: str = option(doc=LISTEN_DOC, check=check_address, example='"0.0.0.0:5514"')
    protocol: Literal["tcp", "udp"] = option(doc="The transport.", default="tcp")
    framing: Literal["auto", "newline", "nul", "octet-counted"] = option(
        doc="How TCP messages are delimited (RFC 6587); `auto` decides by the first byte. With "
        "`nul` a message may have several lines: Python's `SysLogHandler` ends each with NUL.",
        default="auto",
    )
    max_line_bytes: int = max_line_bytes()
    max_connections: int = max_connections()
    idle_seconds: float | None = idle_seconds()
    per_peer: PeerLimits = option(doc=PER_PEER_DOC, default=NO_LIMITS)
    tls: Tls | None = option(doc=TLS_DOC, default=None)

    def claims(self) -> Iterator[tuple[str, str]]:
        return claim(self.protocol, self.listen)

    def needs(self) -> Iterator[Need]:
        return listening(self.listen, self.tls)

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.tls is not None and self.protocol == "udp":
            yield "tls", "needs the protocol tcp"
        if self.per_peer != NO_LIMITS and self.protocol == "udp":
            yield "per_peer", "needs the protocol tcp: the sender of a datagram is unknown"

    def arrival(self) -> str:
        return _STREAM_ARRIVAL if self.protocol == "tcp" else _DATAGRAM_ARRIVAL


@dataclass(frozen=True)
class Tcp(SourceOptions):
    """Receives lines, or messages with their lengths, over TCP or TLS.

    Attributes: `source`, `peer`, `client`.
    """

    implementation: ClassVar[str] = "flumeng.connectors.network.sockets:TcpSource"

    listen: str = option(doc=LISTEN_DOC, check=check_address, example='"0.0.0.0:5140"')
    framing: Literal["newline", "length-prefixed", "octet-counted"] = option(
        doc=f"How messages are delimited: {_FRAMING_DOC}", default="newline"
    )
    max_line_bytes: int = max_line_bytes()
    max_connections: int = max_connections()
    idle_seconds: float | None = idle_seconds()
    per_peer: PeerLimits = option(doc=PER_PEER_DOC, default=NO_LIMITS)
    tls: Tls | None = option(doc=TLS_DOC, default=None)

    def claims(self) -> Iterator[tuple[str, str]]:
        return claim("tcp", self.listen)

    def needs(self) -> Iterator[Need]:
        return listening(self.listen, self.tls)

    def arrival(self) -> str:
        return _STREAM_ARRIVAL


@dataclass(frozen=True)
class Udp(SourceOptions):
    """Receives datagrams. Attributes: `source`, `peer`."""

    implementation: ClassVar[str] = "flumeng.connectors.network.sockets:UdpSource"

    listen: str = option(doc=LISTEN_DOC, check=check_address, example='"0.0.0.0:5140"')
    framing: Literal["datagram", "newline", "length-prefixed", "octet-counted"] = option(
        doc=f"The content of a datagram: one message, or several, delimited by {_FRAMING_DOC}",
        default="datagram",
    )
    max_line_bytes: int = max_line_bytes()

    def claims(self) -> Iterator[tuple[str, str]]:
        return claim("udp", self.listen)

    def needs(self) -> Iterator[Need]:
        return listening(self.listen, None)

    def arrival(self) -> str:
        return _DATAGRAM_ARRIVAL
