"""The disk space that all journals of a worker share."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from flumeng.journal.log.contract import Log
from flumeng.journal.log.limits import Room, no_limit

FEW_JOURNALS = 100
COUNT_SHARE = 0.05
"""Largest share of the time spent on adding up the sizes of many journals."""


class DiskQuota:
    """The disk space left for a worker's journals. Any thread asks for it before each frame, so the
    sum over many journals is cached."""

    def __init__(
        self,
        max_bytes: int | None,
        journals: Callable[[], Mapping[str, Log]],
        taken: Callable[[], Collection[str]],
    ) -> None:
        self._most = no_limit().left if max_bytes is None else max_bytes
        self._journals, self._taken = journals, taken
        self._counted = no_limit()
        self._count_at = 0.0

    def left(self) -> Room:
        began = time.monotonic()
        if began >= self._count_at:
            on_disk = [
                journal for journal in self._journals().values() if journal.durability != "memory"
            ]
            held = sum(journal.bytes for journal in on_disk)
            taken = self._taken()
            flows = sum(1 for journal in on_disk if journal.id in taken)
            self._counted = Room(self._most - held, flows)
            if len(on_disk) > FEW_JOURNALS:
                now = time.monotonic()
                self._count_at = now + (now - began) / COUNT_SHARE
        return self._counted
