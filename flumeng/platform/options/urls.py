"""URLs that users write."""

from __future__ import annotations

from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}


def check_url(text: str) -> None:
    parts = urlsplit(text)
    if parts.scheme not in PORTS or not parts.hostname or not text.isascii() or " " in text:
        raise ValueError('expected a URL, like "https://hooks.example/events"')
    if "@" in parts.netloc:
        raise ValueError("expected no user or password in it: use headers with a ${secret:NAME}")
    if parts.port == 0:
        raise ValueError("expected a port from 1 to 65535")
    if parts.fragment:
        raise ValueError("expected nothing behind #")


def with_port(host: str) -> str:
    """The URL ``host``, checked, as the policy of a node has it."""
    url = urlsplit(host)
    port = url.port or (443 if url.scheme == "https" else 80)
    name = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{url.scheme}://{name}:{port}{url.path.rstrip('/')}"
