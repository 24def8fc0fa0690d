"""Members of archives, and the limits of what an archive may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flumeng.connectors.objects.content import Blocks
from flumeng.control.snapshot.items import MOST_POSITION
from flumeng.platform.errors import CorruptError

MOST_MEMBERS = 100_000
FREE_BYTES = 1 << 30
MOST_TIMES = 1000
"""The most that an archive unpacks to, in times its own bytes, where that is more than
``FREE_BYTES``: Deflate's limit; logs shrink to a tenth or a fiftieth."""


class Member(NamedTuple):
    """A regular file. ``written``: seconds since the epoch, 0 when unknown."""

    name: str
    written: float
    blocks: Blocks


class Allowance:
    """What an archive of ``packed`` bytes may still unpack to. Raises CorruptError for a bomb."""

    def __init__(self, packed: int) -> None:
        self._members = MOST_MEMBERS
        self._bytes = min(max(FREE_BYTES, MOST_TIMES * packed), MOST_POSITION)
        self._said = f"it unpacks to more than {self._bytes} bytes, of {packed}"

    def count(self) -> None:
        self._members -= 1
        if self._members < 0:
            raise CorruptError(f"it has more than {MOST_MEMBERS} members")

    def take(self, size: int) -> None:
        self._bytes -= size
        if self._bytes < 0:
            raise CorruptError(self._said)

    def of(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.take(len(block))
            yield block
