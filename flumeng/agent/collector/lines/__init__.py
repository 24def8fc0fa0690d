"""Joins lines that belong together into one event, before all filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flumeng.connectors.api.ranged import Progress, Range


@dataclass(frozen=True)
class JoinedRange:
    """``progress``: after ``piece``. ``closed``: number of multiline events by the reason for their
    end, except the start of the next. ``unfinished``: a container's message lacks its end."""

    piece: Range
    progress: Progress
    closed: Mapping[str, int]
    unfinished: bool = False
