"""Joins lines that belong together into one event, before all filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flumeng.connectors.api.ranged import Progress, Range


@dataclass(frozen=True)
class JoinedRange:
    """A range read as joined lines. ``progress``: after the range. ``closed``: number of events
    closed early, by reason. ``unfinished``: a message lacks its end."""

    piece: Range
    progress: Progress
    closed: Mapping[str, int]
    unfinished: bool = False
