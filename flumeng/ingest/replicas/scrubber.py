"""Looks at what nobody reads, so that damage is met while another copy has what is damaged.

Copies are read once they lead, and what is retained by nobody. All of it is read here once an hour,
slowly: the scrubbing of ZFS and Ceph, the block scanner of HDFS.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from flumeng.errors import FlumengError
from flumeng.journal.segment import Window

log = logging.getLogger(__name__)

BYTES_PER_SECOND = 8 << 20
PASS_SECONDS = 3600.0
"""From the beginning of one pass over all to that of the next one, unless it takes longer."""


class Scrubbed(Protocol):
    id: str

    def scrub(self) -> Iterator[Window]: ...


class Scrubber:
    """Of all journals of a process, which may be others each time."""

    def __init__(self, journals: Callable[[], Iterable[Scrubbed]]) -> None:
        self._journals = journals
        self._stopping = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="scrubber", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def look(self) -> Iterator[int]:
        """One pass; the bytes of each part that was read."""
        for journal in self._journals():
            try:
                for window in journal.scrub():
                    yield window.buffer.size
            except (FlumengError, OSError) as error:
                log.warning("journal %s cannot be looked at now: %s", journal.id, error)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            for nbytes in self.look():
                if self._stopping.wait(nbytes / BYTES_PER_SECOND):
                    return
            self._stopping.wait(began + PASS_SECONDS - time.monotonic())
