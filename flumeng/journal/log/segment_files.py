"""Reads the frames of a journal that another process of this host writes, from its files and
without its lock. The caller knows up to which seq the writer has made events durable: frames below
are never changed, and what may lie behind them is not read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from flumeng.journal.log.errors import BelowFloorError
from flumeng.journal.log.frame import identity
from flumeng.journal.log.segment import Segment, Window, files, open_segment

KEPT_SEGMENTS = 256
"""Segments whose index is kept: it takes a read of each frame's header to make it."""


class SegmentFiles:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, Segment] = OrderedDict()

    def windows(self, directory: Path, start: int, end: int) -> Iterator[Window]:
        """Yield the frames of [start, end) of the journal in ``directory``, perhaps encrypted. All
        must be durable. Raises FlumengError and OSError, after all frames before."""
        owner = identity(directory.name)
        paths = {base: path for base, path in files(directory).items() if base < end}
        bases = [*paths, end]
        if start < bases[0]:
            raise BelowFloorError(f"{directory}: seq {start} is gone, the first is {bases[0]}")
        for base, stop in pairwise(bases):
            if start < stop:
                segment = self._segment(paths[base], owner, stop)
                yield from segment.windows(max(start, base), stop)

    def _segment(self, path: Path, owner: bytes, stop: int) -> Segment:
        with self._lock:
            segment = self._kept.pop(path, None) or open_segment(path, owner)[0]
            segment.follow(path.stat().st_size, stop)
            self._kept[path] = segment
            while len(self._kept) > KEPT_SEGMENTS:
                self._kept.popitem(last=False)
            return segment
