"""The contract of all polls.

A poll is made of a source's options, with its secrets resolved, in the collector that has the lane.
One thread asks, one due time after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

MOST_STATE_BYTES = 64 * 1024
"""Of a state in UTF-8, which is kept in ZooKeeper."""


@dataclass(frozen=True)
class Answer:
    """``bodies``: one for each record. ``state``: what the next poll begins with. ``more``: the
    rest is asked for at once from ``state``, for the same due time."""

    bodies: pa.BinaryArray
    state: str
    more: bool = False


class Poll(Protocol):
    def ask(self, state: str, due: datetime) -> Answer:
        """An answer of some MiB at most, within about a minute. ``state`` is "" at first, ``due``
        is in UTC. An answer that was not kept is asked for again from the same state.

        Raises UnavailableError when to retry for as long as it takes; UserError and CorruptError
        when that would not help: then the due time fails after a few tries.
        """

    def close(self) -> None:
        """Abort what is asked; from any thread."""
