"""Options of sources that listen on a port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flumeng.connectors.network.server_tls import Tls
from flumeng.platform.options.option import Need, option

LISTEN_DOC = "The address to listen on. Port 0 takes a free one."
TLS_DOC = "Serve over TLS."
PER_PEER_DOC = "What one peer address may have, so that it does not crowd out others."
_CONNECTIONS_DOC = (
    "TCP connections over this number, in each ingest worker, are closed at once and counted. An "
    "idle one takes 4 KiB of memory, with TLS 50 KiB."
)
_IDLE_DOC = "A TCP connection on which nothing arrives for so long is closed; by default none is."


def max_connections() -> Any:
    return option(doc=_CONNECTIONS_DOC, between=(1, 10**6), default=10_000)


def idle_seconds() -> Any:
    return option(doc=_IDLE_DOC, between=(0.1, 604_800), default=None)


def claim(protocol: str, listen: str) -> Iterator[tuple[str, str]]:
    """One address and port has one source; port 0 is never the same."""
    if not listen.endswith(":0"):
        yield "listen", f"{protocol} {listen}"


def listening(listen: str, tls: Tls | None) -> Iterator[Need]:
    yield "listen", listen
    if tls is not None:
        for path in tls.files():
            yield "path", path
