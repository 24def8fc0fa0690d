"""The process's budget of descriptors for followed files; other users need some, and
``listening.takes_reserve`` limits connections. Closed files with new content are reopened."""

from __future__ import annotations

import functools
import os
import resource
import threading

from flumeng.journal.log.disk import OUT_OF_DESCRIPTORS
from flumeng.platform.listening import reserved_files

MOST_FILES = 4096
LEAST_FILES = 4
SCAN_DESCRIPTORS = 4  # directories open at once during a search for files
SHARE = 3
"""Followed files get one third of the unreserved descriptors."""

CALM = 0.5
"""A shortage ends when a descriptor is given back and at most this share remains taken."""


class Descriptors:
    """A budget of ``most`` open files. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._lock = threading.Lock()
        self._short = False

    @property
    def is_short(self) -> bool:
        """Whether over ``CALM`` of the budget is taken, or a refusal's shortage has not ended. Then
        files without new content are closed."""
        return self._short or self.taken > self.most * CALM

    def take(self) -> bool:
        """Take a descriptor; return False when none is left. ``give_back`` returns it."""
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
        """Report that the system refused a descriptor within the budget."""
        self._short = True


@functools.cache
def of_followed_files() -> Descriptors:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Descriptors(max(LEAST_FILES, min(MOST_FILES, (most - reserved_files(most)) // SHARE)))


def require_directories() -> None:
    """Raise OSError when too few descriptors are left to walk nested directories."""
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
