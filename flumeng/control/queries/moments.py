"""Times for people."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(seconds: float) -> str:
    """In UTC, to the second; an impossible time is shown as its number."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
