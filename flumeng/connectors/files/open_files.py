"""Open files of a split, one or several for each directory or partition."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

GATHERED_BYTES = 64 * 1024 * 1024
"""Bytes of events that are sorted by file, and written as row groups, together."""


class StagedFile(Protocol):
    def close(self) -> None:
        """Make the file durable, and close it."""


K = TypeVar("K", bound=Hashable)
F = TypeVar("F", bound=StagedFile)
P = TypeVar("P")


@dataclass
class OpenFiles(Generic[K, F]):
    most_open: int = 256
    """Most open files of a split; the least recently used file is closed for another."""
    most_files: int = 4096
    """Most files of a split: more do not fit into the record of a commit."""
    closed: list[F] = field(default_factory=list)
    _open: dict[K, F] = field(default_factory=dict)
    """Open files, least recently used first."""

    @property
    def too_many(self) -> bool:
        return len(self._open) + len(self.closed) > self.most_files

    def in_order(self, parts: Iterable[tuple[K, P]]) -> list[tuple[K, P]]:
        """Sort ``parts``: those of open files come first, so that fewer files are closed."""
        return sorted(parts, key=lambda part: part[0] not in self._open)

    def get(self, key: K, create: Callable[[], F]) -> F:
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) == self.most_open:
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
