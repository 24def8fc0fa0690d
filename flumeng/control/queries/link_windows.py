"""Flows that read another site only in a window, their own (`at`) or that of the site."""

from __future__ import annotations

from datetime import UTC, datetime

from flumeng.config import FlowSpec
from flumeng.control.queries.read_cache import ReadCache
from flumeng.platform.options.windows import parse_hours
from zkschema import paths


def why_waiting(cache: ReadCache, spec: FlowSpec | None, now: float) -> str:
    """Return why the flow reads nothing at this time of the day; "" while it may read. ``now``:
    seconds since the epoch."""
    moment = datetime.fromtimestamp(now, UTC)
    for remote in filter(None, (part.options.remote for part in (spec.sources if spec else ()))):
        found = cache.read(paths.site(remote.site))
        for text in (remote.at, found.value.at if found else ""):
            if text and not parse_hours(text).is_open(moment):
                return f"it reads site {remote.site} at {text}{_next(text, moment)}"
    return ""


def _next(text: str, moment: datetime) -> str:
    opens = parse_hours(text).opens_at(moment)
    return f": again from {opens:%a %H:%M} on" if opens else ""
