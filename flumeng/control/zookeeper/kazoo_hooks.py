"""Checks the private parts of kazoo that this package replaces, which another version could
silently rename. kazoo has no public hook for a lease clock, persistent watches and multi-reads."""

from __future__ import annotations

import inspect
from importlib.metadata import version

from kazoo.client import KazooClient

from flumeng.platform.errors import UserError

SUPPORTED = "kazoo>=2.11,<2.12"
OF_CONNECTION = {
    "_invoke": ("timeout", "request", "xid"),
    "_submit": ("request", "timeout", "xid"),
    "_connect_attempt": ("host", "hostip", "port", "retry"),
    "_read_header": ("timeout",),
    "_read_watch_event": ("buffer", "offset"),
}
OF_CLIENT = {"_call": ("request", "async_object")}
OF_HANDLER = ("select", "create_connection", "async_result", "spawn")


def require(client: KazooClient) -> None:
    """Raises UserError when the private parts of the installed kazoo differ."""
    connection = getattr(client, "_connection", None)
    missing = [
        f"{type(owner).__name__}.{name}({', '.join(parameters)})"
        for owner, parts in ((connection, OF_CONNECTION), (client, OF_CLIENT))
        for name, parameters in parts.items()
        if _parameters(owner, name) != parameters
    ]
    missing += [f"handler.{name}" for name in OF_HANDLER if not hasattr(client.handler, name)]
    if not hasattr(connection, "_socket"):
        missing.append("connection._socket")
    if not hasattr(client, "_pending"):
        missing.append("client._pending")
    if missing:
        raise UserError(f"{_unsupported()}: it has no {missing[0]}")


def why_not_taken() -> str:
    return f"{_unsupported()}: it opened a session that the lease clock did not see"


def _unsupported() -> str:
    return f"kazoo {version('kazoo')} is not supported: install `{SUPPORTED}`"


def _parameters(owner: object, name: str) -> tuple[str, ...] | None:
    part = getattr(owner, name, None)
    return tuple(inspect.signature(part).parameters) if callable(part) else None
