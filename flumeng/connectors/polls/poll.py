"""Contract of all polls. The lane's collector builds a poll from the source's options, secrets
resolved. One thread calls it, for one due time after the other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

MOST_STATE_BYTES = 64 * 1024
"""Limit of a state in UTF-8, which is stored in ZooKeeper."""


@dataclass(frozen=True)
class Answer:
    """``bodies``: one per record. ``state``: the argument of the next poll. ``more``: the rest is
    requested at once from ``state``, for the same due time."""

    bodies: pa.BinaryArray
    state: str
    more: bool = False


class Poll(Protocol):
    def ask(self, state: str, due: datetime) -> Answer:
        """An answer of a few MiB, within about a minute; ``state`` is "" at first. An unstored
        answer is requested again. Raises UnavailableError to be retried without limit; UserError
        and CorruptError fail the due time after a few tries."""

    def close(self) -> None:
        """Abort a running request; thread-safe."""
