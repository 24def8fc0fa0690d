"""How many descriptors followed files may hold, in one process.

Connections and files must never take the last descriptors: those are for the journals, for who
reads them, and for looking into directories. Connections give way by ``listening.takes_reserve``,
files by this budget: a file that is not open is opened when something is new in it.
"""

from __future__ import annotations

import functools
import os
import resource
import threading

from flumeng.journal.log.disk import OUT_OF_DESCRIPTORS
from flumeng.platform.listening import reserved_files

MOST_FILES = 4096
LEAST_FILES = 4
SCAN_DESCRIPTORS = 4  # so many directories may be open at once while files are looked for
SHARE = 3
"""Followed files may hold the third part of what is not reserved."""

CALM = 0.5
"""Files are short of descriptors until no more than this part of them is taken."""


class Descriptors:
    """A budget of ``most`` open files. For any thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._lock = threading.Lock()
        self._short = False

    @property
    def is_short(self) -> bool:
        """Whether somebody lacks one: who has a file open in which nothing is new closes it."""
        return self._short or self.taken > self.most * CALM

    def take(self) -> bool:
        """Whether one more file may be opened; then ``give_back`` follows."""
        with self._lock:
            if self.taken >= self.most:
                self._short = True
                return False
            self.taken += 1
            return True

    def give_back(self) -> None:
        with self._lock:
            self.taken -= 1
            if self.taken <= self.most * CALM:
                self._short = False

    def lack(self) -> None:
        """The system refused one although there should be some."""
        self._short = True


@functools.cache
def of_followed_files() -> Descriptors:
    """The budget of this process."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Descriptors(max(LEAST_FILES, min(MOST_FILES, (most - reserved_files(most)) // SHARE)))


def require_directories() -> None:
    """Raises OSError when there are no descriptors for looking into directories, one in another."""
    probes: list[int] = []
    try:
        for _ in range(SCAN_DESCRIPTORS):
            probes.append(os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in OUT_OF_DESCRIPTORS:
            raise
    finally:
        for probe in probes:
            os.close(probe)
