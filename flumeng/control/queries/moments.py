"""Moments, as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(seconds: float) -> str:
    """A moment in UTC, to the second; one that no calendar has is shown as the number that it is,
    so that an odd record takes nothing else from view."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
