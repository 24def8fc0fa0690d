"""Open files of a split, one or several for each directory or partition."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar

OPEN_FILES = 256
"""Most open files of a split; the least recently used file is closed for another."""
MOST_FILES = 4096
"""Most files of a split: more do not fit into the record of a commit."""
GATHERED_BYTES = 64 * 1024 * 1024
"""Bytes of events that are sorted by file, and written as row groups, together."""


class StagedFile(Protocol):
    def close(self) -> None:
        """Make the file durable, and close it."""


K = TypeVar("K", bound=Hashable)
F = TypeVar("F", bound=StagedFile)
P = TypeVar("P")


class OpenFiles(Generic[K, F]):
    def __init__(self) -> None:
        self._open: dict[K, F] = {}
        """Open files, least recently used first."""
        self.closed: list[F] = []

    @property
    def too_many(self) -> bool:
        return len(self._open) + len(self.closed) > MOST_FILES

    def in_order(self, parts: Iterable[tuple[K, P]]) -> list[tuple[K, P]]:
        """Sort ``parts``: those of open files come first, so that fewer files are closed."""
        return sorted(parts, key=lambda part: part[0] not in self._open)

    def get(self, key: K, create: Callable[[], F]) -> F:
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) == OPEN_FILES:
                self.close(next(iter(self._open)))
            file = create()
        self._open[key] = file
        return file

    def close(self, key: K) -> None:
        file = self._open.pop(key)
        file.close()
        self.closed.append(file)

    def close_all(self) -> list[F]:
        """Close all files durably and return them, including those closed earlier."""
        for key in list(self._open):
            self.close(key)
        return self.closed
