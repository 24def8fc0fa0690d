"""Times as people write them: RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime

EXAMPLE = "2026-01-01T00:00:00Z"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(text: str) -> int:
    """Microseconds since 1970 of a time in RFC 3339. Raises ValueError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"expected a time, like {EXAMPLE}") from None
    since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds
