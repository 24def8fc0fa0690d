"""Senders of a socket source, and attributes of their events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from flumeng.connectors.api.framing import Cutter
from flumeng.connectors.api.received_block import LineRules, Origin
from flumeng.connectors.api.source import SourceContext

ATTRIBUTE_CHARACTERS = 200
"""Limits attributes chosen by senders, as each event repeats them."""


class UnauthorizedError(Exception):
    """The reason why a client is not admitted."""


class Client(NamedTuple):
    """The peer of a connection; ``name`` is empty without a certificate (DER)."""

    name: str = ""
    let_in_by: frozenset[str] = frozenset()
    certificate: bytes = b""


def short(text: str) -> str:
    return text.encode(errors="replace").decode()[:ATTRIBUTE_CHARACTERS]


def address(name: tuple[Any, ...]) -> str:
    """A socket's name as ``host:port``, an IPv6 host in brackets."""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Reception:
    """Turns received bytes into blocks. ``cutter`` serves one connection or datagram; without it a
    datagram is one message."""

    source: str
    rules: LineRules
    context: SourceContext
    cutter: Callable[[], Cutter] | None

    def origin(self, peer: tuple[Any, ...], client: str = "", **more: str) -> Origin:
        proven = {"client": short(client)} if client else {}
        attrs = {"source": self.source, "peer": address(peer), **proven, **more}
        return Origin(peer[0], tuple(attrs.items()), self.rules)
