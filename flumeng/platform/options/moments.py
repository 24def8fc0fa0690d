"""Moments that users write, with their zone."""

from __future__ import annotations

from datetime import datetime


def time_of(text: str) -> datetime:
    """The moment that ``start_from`` names, with its zone. Raises ``ValueError``."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            "expected earliest, latest, or a time with its zone, like 2026-11-22T08:00:00Z"
        )
    return moment
