"""Senders of a socket source, and attributes of their events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from flumeng.connectors.api.framing import Cutter
from flumeng.connectors.api.received_block import LineRules, Origin
from flumeng.connectors.api.source import SourceContext

ATTRIBUTE_CHARACTERS = 200
"""Length limit of attributes that senders choose: each event repeats them."""


class UnauthorizedError(Exception):
    """A client is not admitted; the message is the reason."""


class Client(NamedTuple):
    """A client, empty without a ``certificate`` (DER). ``let_in_by``: its names in tls.clients."""

    name: str = ""
    let_in_by: frozenset[str] = frozenset()
    certificate: bytes = b""


def short(text: str) -> str:
    return text.encode(errors="replace").decode()[:ATTRIBUTE_CHARACTERS]


def address(name: tuple[Any, ...]) -> str:
    """Return a socket's name as ``host:port``, with an IPv6 host in brackets."""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Reception:
    """How a source makes blocks of received bytes. ``cutter`` creates the Cutter of a connection or
    datagram; if it is None, each datagram is a message."""

    source: str
    rules: LineRules
    context: SourceContext
    cutter: Callable[[], Cutter] | None

    def origin(self, peer: tuple[Any, ...], client: str = "", **more: str) -> Origin:
        proven = {"client": short(client)} if client else {}
        attrs = {"source": self.source, "peer": address(peer), **proven, **more}
        return Origin(peer[0], tuple(attrs.items()), self.rules)
