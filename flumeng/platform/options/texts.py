"""Checks of URLs, times, and names of users' code and of Spark's formats."""

from __future__ import annotations

import re
from datetime import datetime
from urllib.parse import urlsplit

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text")
"""Built-in formats of Spark; their options with a dot in the name are also settings of Hadoop."""
PORTS = {"http": 80, "https": 443}
_FORMAT = re.compile(r"[A-Za-z_][\w.$-]*", re.ASCII)
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_MODULE = re.compile(rf"{_NAME}(\.{_NAME})*")
_FUNCTION = re.compile(rf"{_NAME}(\.{_NAME})*:{_NAME}")


def time_of(text: str) -> datetime:
    """Return a ``start_from`` that is a time. Raises ``ValueError``, also if it has no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            "expected earliest, latest, or a time with its zone, like 2026-11-22T08:00:00Z"
        )
    return moment


def check_format(text: str) -> None:
    if not _FORMAT.fullmatch(text):
        raise ValueError("expected the name of a data source of Spark, like parquet or jdbc")


def check_url(text: str) -> None:
    parts = urlsplit(text)
    if parts.scheme not in PORTS or not parts.hostname or not text.isascii() or " " in text:
        raise ValueError('expected a URL, like "https://hooks.example/events"')
    if "@" in parts.netloc:
        raise ValueError(
            "expected no user and password in the URL: use headers with ${secret:NAME}"
        )
    if parts.port == 0:
        raise ValueError("expected a port from 1 to 65535")
    if parts.fragment:
        raise ValueError("expected a URL without #")


def with_port(host: str) -> str:
    """Return scheme, host, port and path of a checked URL, the form in a node's policy."""
    url = urlsplit(host)
    port = url.port or (443 if url.scheme == "https" else 80)
    name = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{url.scheme}://{name}:{port}{url.path.rstrip('/')}"


def check_module(text: str) -> None:
    if not _MODULE.fullmatch(text):
        raise ValueError("expected a module, like company.sinks")


def check_function(text: str) -> None:
    if not _FUNCTION.fullmatch(text):
        raise ValueError('expected a module and a function, like "company.sinks:to_warehouse"')


def check_argument(name: str) -> None:
    if not re.fullmatch(_NAME, name):
        raise ValueError("expected the name of an argument")
