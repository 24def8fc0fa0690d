"""Who sends something, and what is the same for all that a socket source receives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flumeng.ingest.framing import Cutter
from flumeng.ingest.received_block import LineRules, Origin
from flumeng.ingest.source import SourceContext


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

    def origin(self, peer: tuple[Any, ...], **more: str) -> Origin:
        attrs = {"source": self.source, "peer": address(peer), **more}
        return Origin(peer[0], tuple(attrs.items()), self.rules)
