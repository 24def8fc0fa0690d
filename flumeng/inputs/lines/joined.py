"""What executors tell the driver of the lines that they have joined. Light: no Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from flumeng.inputs import Progress, Range


@dataclass(frozen=True)
class JoinedRange:
    """``progress`` is where ``piece`` leaves its partition; ``closed``: how many events of several
    lines in it ended for which reason, and not since the next one began."""

    piece: Range
    progress: Progress
    closed: Mapping[str, int]


JoinedRanges = Mapping[tuple[str, str], JoinedRange]
"""Task and partition -> what was told of it last."""


class JoinedAccumulator(Protocol):
    """Takes what executors tell to the driver. It is pickled."""

    @property
    def value(self) -> JoinedRanges:
        """In the driver only."""

    def add(self, term: JoinedRanges) -> None: ...
