"""Timestamps for display."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(seconds: float) -> str:
    """Return the time in UTC to the second; a time out of range is shown as its number."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
