"""Reads journals that nobody reads, to find damage while another copy is whole.

All of it once an hour, slowly, like the scrubbing of ZFS and Ceph.
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
"""Seconds between the beginnings of two passes."""
AGAIN_SECONDS = 10.0
"""Seconds before an unreadable journal is read again."""


class Scrubbed(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def is_suspect(self) -> bool: ...

    def scrub(self) -> Iterator[Window]: ...


class Scrubber:
    def __init__(self, journals: Callable[[], Sequence[Scrubbed]]) -> None:
        self._journals = journals
        self._stopping = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="scrubber", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def look(self) -> Iterator[float]:
        """One pass in random order; yields the seconds to wait after each part."""
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
