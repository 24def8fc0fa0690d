"""Detects a ZooKeeper that lost history: recreated, or restored from an older backup. A server
silently drops clients that saw later changes, and kazoo would retry for ever. When a leader or
standalone server lacks changes that the client saw, the session is treated as expired."""

from __future__ import annotations

import logging
import re
import socket
import time
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, SessionExpiredError
from kazoo.protocol.serialization import Connect

log = logging.getLogger(__name__)

ASK_SECONDS = 2.0
ANSWER_BYTES = 4096
_LAST = re.compile(rb"^Zxid: 0x([0-9a-f]+)$", re.MULTILINE)
_DECIDES = re.compile(rb"^Mode: (standalone|leader)$", re.MULTILINE)


def observe(client: KazooClient) -> None:
    """Check each server that drops ``client`` instead of accepting its session."""
    connection = client._connection
    invoke = connection._invoke

    def invoke_observed(timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect) or not client.last_zxid:
            return invoke(timeout, request, xid)
        server = _server(connection._socket)
        try:
            return invoke(timeout, request, xid)
        except ConnectionDropped:
            if server is None or not _has_lost(client, server):
                raise
            log.error(
                "ZooKeeper at %s:%d has lost changes: it was recreated, or restored from an older "
                "backup. Its content is used as it is: repeat the lost changes",
                *server.address,
            )
            raise SessionExpiredError("ZooKeeper has lost changes") from None

    connection._invoke = invoke_observed


class _Server(NamedTuple):
    """A server's address, and the host ``name`` in its certificate."""

    address: tuple[str, int]
    name: str


def _server(connection: socket.socket) -> _Server | None:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:
        return None
    return _Server((host, port), getattr(connection, "server_hostname", None) or host)


def _has_lost(client: KazooClient, server: _Server) -> bool:
    """Return whether a leader or standalone server lacks changes that the client has seen."""
    until = time.monotonic() + ASK_SECONDS
    try:
        asking: socket.socket = client.handler.create_connection(
            server.address, hostname=server.name, timeout=ASK_SECONDS
        )
        with asking:
            asking.sendall(b"srvr")
            answer = _received(asking, until)
    except OSError:
        return False
    last = _LAST.search(answer)
    if last is None or not _DECIDES.search(answer):
        return False
    return int(last[1], 16) < int(client.last_zxid)


def _received(asking: socket.socket, until: float) -> bytes:
    """Return everything that the server sends in time; raises OSError otherwise."""
    answer = b""
    while True:
        asking.settimeout(max(0.001, until - time.monotonic()))
        part = asking.recv(ANSWER_BYTES)
        if not part:
            return answer
        answer += part
