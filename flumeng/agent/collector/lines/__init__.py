"""Lines that belong together become one event, before all filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flumeng.connectors.api.ranged import Progress, Range


@dataclass(frozen=True)
class JoinedRange:
    """``progress`` is where ``piece`` leaves its partition; ``closed``: how many events of several
    lines in it ended for which reason, and not since the next one began. ``unfinished``: whether
    the rest of a container's message is waited for."""

    piece: Range
    progress: Progress
    closed: Mapping[str, int]
    unfinished: bool = False
