"""Who sends something, and what is the same for all that a socket source receives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from flumeng.connectors.api.framing import Cutter
from flumeng.connectors.api.received_block import LineRules, Origin
from flumeng.connectors.api.source import SourceContext

ATTRIBUTE_CHARACTERS = 200
"""An attribute is repeated for each event, so its length must not be the sender's choice."""


class UnauthorizedError(Exception):
    """Why a client is not let in."""


class Client(NamedTuple):
    """Who is at the other end of a connection; an empty name without a certificate.

    ``let_in_by`` are those of ``tls.clients`` that name it, ``certificate`` is in DER.
    """

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
    """What happens to received bytes. ``source`` is the source's name in the flow language;
    ``cutter`` makes a new one for each connection or datagram, without it a datagram is one
    message."""

    source: str
    rules: LineRules
    context: SourceContext
    cutter: Callable[[], Cutter] | None

    def origin(self, peer: tuple[Any, ...], client: str = "", **more: str) -> Origin:
        """``client`` is what the sender has proven to be; empty without a proof."""
        proven = {"client": short(client)} if client else {}
        attrs = {"source": self.source, "peer": address(peer), **proven, **more}
        return Origin(peer[0], tuple(attrs.items()), self.rules)
