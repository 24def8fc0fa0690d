"""Contract of all polls. The lane's collector creates a poll from the source's options; the poll
resolves their secrets. Calls of ``ask`` never overlap, and are in the order of due times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

MOST_STATE_BYTES = 64 * 1024
"""Limit of a state in UTF-8, which is stored in ZooKeeper."""


@dataclass(frozen=True)
class Answer:
    """An answer, or part of it. ``bodies``: one per record. ``state``: argument of the next poll.
    ``more``: the next part is requested at once from ``state``, for the same due time."""

    bodies: pa.BinaryArray
    state: str
    more: bool = False


class Poll(Protocol):
    def ask(self, state: str, due: datetime) -> Answer:
        """Return an answer of a few MiB, within about a minute; ``state`` is "" at first. An answer
        that could not be stored is requested again. Raises UnavailableError to be retried without
        limit; UserError and CorruptError fail the due time after a few tries."""

    def close(self) -> None:
        """Abort a running request; thread-safe."""
