"""Detects that a data directory was copied or restored while a node ran in it.

A running node keeps the inode and the birth time of its lock file in ``running``, and removes that
file when it has ended. A copy or a restored backup has another lock file: no tool can set a birth
time. Where the file system keeps none, the change time stands for it. A directory that was copied
after its node had ended is told by its claim (see ``claim``). Snapshots of a whole file system keep
both, and are told by the acks of their journals.
"""

from __future__ import annotations

import os
from pathlib import Path

from flumeng.platform.birth_time import birth_time
from flumeng.platform.whole_files import write_durably

FILE = "running"


class RunMark:
    """Of the data directory ``path``, whose lock file has the descriptor ``lock``."""

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
        """The node has ended. Raises OSError."""
        self._file.unlink(missing_ok=True)

    def _own(self) -> str:
        born = birth_time(self._lock)
        if born is None:
            return self._by_change_time()
        return f"{os.fstat(self._lock).st_ino} born {born}"

    def _by_change_time(self) -> str:
        """As nodes before this version kept it too."""
        found = os.fstat(self._lock)
        return f"{found.st_ino} {int(found.st_ctime)}"  # some file systems keep whole seconds

    def _kept(self) -> str:
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return ""
