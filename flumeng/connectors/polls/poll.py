"""What is asked at each due time: the contract of all pollers.

A poll is made of a source's options in the collector that has the lane, with its secrets resolved.
One thread asks it, one due time after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

MOST_STATE_BYTES = 64 * 1024
"""Of what a poll goes on from, in UTF-8: it is kept in ZooKeeper."""


@dataclass(frozen=True)
class Answer:
    """``bodies``: one for each record, in order. ``state`` is what the next poll begins with, a
    text of at most ``MOST_STATE_BYTES``. ``more``: there is more than one answer may hold, and
    it is asked for at once, from ``state``, under the same due time."""

    bodies: pa.BinaryArray
    state: str
    more: bool = False


class Poll(Protocol):
    """``state`` is written in one transaction with the name of the file that has the answer, so an
    answer that was not kept is asked for again, from the state before it."""

    def ask(self, state: str, due: datetime) -> Answer:
        """``state`` is "" at first, ``due`` is in UTC. It ends within a minute or so, or when the
        poll is closed, with an answer of some MiB at most.

        Raises UnavailableError when it is to be asked again for as long as it takes; UserError and
        CorruptError when that would not help: then this due time fails after a few tries.
        """

    def close(self) -> None:
        """It is asked no more; from any thread, also while it is asked."""
