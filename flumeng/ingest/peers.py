"""Who sent something, in the form in which events carry it."""

from __future__ import annotations

from typing import Any

from flumeng.ingest.chunk import LineRules, Origin


def address(name: tuple[Any, ...]) -> str:
    """A socket's name as ``host:port``, an IPv6 host in brackets."""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def origin(name: tuple[Any, ...], rules: LineRules, **more: str) -> Origin:
    """The origin of what the syslog peer ``name`` sends."""
    attrs = {"source": "syslog", "peer": address(name), **more}
    return Origin(name[0], tuple(attrs.items()), rules)
