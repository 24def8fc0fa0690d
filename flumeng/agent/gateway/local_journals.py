"""Journals of the gateway's own node, which it reads from their files: the journal's server would
copy each byte once more, and encrypt it.

Only what a server of this node has reported durable is read so. A copy of a journal that another
node writes now may have other events.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flumeng.connectors.api.ranged import Reach
from flumeng.control.zookeeper import Store
from flumeng.journal.log.segment import Window
from flumeng.journal.log.segment_files import SegmentFiles
from flumeng.journal.serving.windows import end_of
from flumeng.platform.errors import FlumengError
from zkschema import paths

log = logging.getLogger(__name__)

REREAD_SECONDS = 5.0


class LocalJournals:
    """Thread-safe. ``data``: the data directory of ``node``."""

    def __init__(
        self, store: Store, node: str, data: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._node = node
        self._data = data
        self._clock = clock
        self._files = SegmentFiles()
        self._servers: tuple[float, frozenset[str]] = float("-inf"), frozenset()

    def windows(self, journal: str, reach: Reach, start: int, end: int) -> Iterator[Window]:
        """Yield frames of [start, end) in order, as far as they can be read here: none of another
        node's journal, of an encrypted one, or from damage on. Raises UnavailableError."""
        if reach.trouble or reach.held or not reach.floor <= start < end <= reach.safe:
            return
        if reach.address not in self._addresses():
            return
        seq = start
        try:
            for directory in (self._data / "journals").glob(f"*/{journal}"):
                for window in self._files.windows(directory, seq, end):
                    if window.encrypted:
                        return
                    yield window
                    seq = end_of(window, journal)
        except (FlumengError, OSError) as error:
            log.debug("journal %s is read from its server from seq %d on: %s", journal, seq, error)

    def _addresses(self) -> frozenset[str]:
        read_at, servers = self._servers
        if self._clock() - read_at >= REREAD_SECONDS:
            live = self._store.read(paths.live_node(self._node))
            servers = frozenset(live.value.addresses if live else ())
            self._servers = self._clock(), servers
        return servers
