"""Connections of an executor that nobody uses: to open one costs more than a small batch."""

from __future__ import annotations

import threading

from flumeng.sinks.postgres.connection import Connection
from flumeng.sinks.postgres.target import Server

EACH = 2
_lock = threading.Lock()
_kept: dict[Server, list[Connection]] = {}


def take(server: Server) -> Connection:
    """One that was kept, or a new one. Raises UnavailableError, UserError."""
    with _lock:
        kept = _kept.get(server)
        if kept:
            return kept.pop()
    return Connection(server)


def keep(server: Server, connection: Connection) -> None:
    """For the next who takes one. Spark ends a Python process that has had nothing to do for a
    minute, and so its connections."""
    with _lock:
        kept = _kept.setdefault(server, [])
        if len(kept) < EACH:
            kept.append(connection)
            return
    connection.close()
