"""Looks at what nobody reads, so that damage is met while another copy has what is damaged.

Copies are read once they lead, and what is retained by nobody. All of it is read here once an hour,
slowly: the scrubbing of ZFS and Ceph, the block scanner of HDFS.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from flumeng.journal.log.segment import Window
from flumeng.platform.errors import FlumengError

log = logging.getLogger(__name__)

BYTES_PER_SECOND = 8 << 20
PASS_SECONDS = 3600.0
"""From the beginning of one pass over all to that of the next one, unless it takes longer."""
AGAIN_SECONDS = 10.0
"""What cannot be read is read once more so much later."""


class Scrubbed(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def is_suspect(self) -> bool: ...

    def scrub(self) -> Iterator[Window]: ...


class Scrubber:
    """Of all journals of a process, which may be others each time."""

    def __init__(self, journals: Callable[[], Sequence[Scrubbed]]) -> None:
        self._journals = journals
        self._stopping = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="scrubber", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def look(self) -> Iterator[float]:
        """One pass, in any order, so that none is always the last; the seconds to wait after each
        part."""
        journals = self._journals()
        for journal in random.sample(journals, len(journals)):
            yield from _look_at(journal)
        if suspects := [journal for journal in journals if journal.is_suspect]:
            yield AGAIN_SECONDS
            for journal in suspects:
                yield from _look_at(journal)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            for seconds in self.look():
                if self._stopping.wait(seconds):
                    return
            self._stopping.wait(began + PASS_SECONDS - time.monotonic())


def _look_at(journal: Scrubbed) -> Iterator[float]:
    try:
        for window in journal.scrub():
            yield window.buffer.size / BYTES_PER_SECOND
    except (FlumengError, OSError) as error:
        log.warning("journal %s cannot be looked at now: %s", journal.id, error)
    except Exception:
        log.exception("journal %s cannot be looked at", journal.id)
