"""Detects that a data directory was copied or restored while a node ran in it.

A running node stores the inode and birth time of its lock file in ``running``; a copy has another
lock file, and no tool can set a birth time. Without birth times the change time stands in. A copy
made after the node ended is detected by its claim, a file system snapshot by the acks of its
journals.
"""

from __future__ import annotations

import os
from pathlib import Path

from flumeng.platform.birth_time import birth_time
from flumeng.platform.whole_files import write_durably

FILE = "running"


class RunMark:
    """``lock`` is the descriptor of the directory's lock file."""

    def __init__(self, path: Path, lock: int) -> None:
        self._file = path / FILE
        self._lock = lock
        self.is_foreign = self._kept() not in ("", self._own(), self._by_change_time())
        """Whether a node ran in another directory when this one was copied from it."""

    def set(self) -> None:
        """Durable when this returns. Raises OSError."""
        os.fsync(self._lock)
        write_durably(self._file, self._own())

    def clear(self) -> None:
        """Raises OSError."""
        self._file.unlink(missing_ok=True)

    def _own(self) -> str:
        born = birth_time(self._lock)
        if born is None:
            return self._by_change_time()
        return f"{os.fstat(self._lock).st_ino} born {born}"

    def _by_change_time(self) -> str:
        """The mark of older versions."""
        found = os.fstat(self._lock)
        return f"{found.st_ino} {int(found.st_ctime)}"  # some file systems keep whole seconds

    def _kept(self) -> str:
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return ""
