"""Which copies on other nodes are late, and which are to be told something, by the primary's clock.

A journal at rest says nothing: that a node lives, its link tells for all its journals together.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from flumeng.journal.replication.primary import Primary

LATE_SECONDS = 5.0
"""A copy that lacks for so long what it was sent, or whose node says nothing, is late."""
TELL_SECONDS = 1.0
"""So often, at most, a copy is told something once more, or how far all copies are."""


class _Mark(NamedTuple):
    """When the log ended at ``end``; a copy that has come so far since is in time."""

    end: int
    at: float


class Lateness:
    """Of one journal. Seconds are of one clock that only grows."""

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}
        self._heard_at: dict[str, float] = {}
        self._told_at: dict[str, float] = {}
        self._told: dict[str, tuple[int, int]] = {}

    def begin(self) -> None:
        """Nobody is late yet: this is the primary only now."""
        self._marks.clear()
        self._told.clear()

    def heard(self, node: str, now: float) -> None:
        self._heard_at[node] = now

    def is_late(self, primary: Primary, node: str, now: float, alive_at: float) -> bool:
        """``alive_at``: when something was heard from the node at all. One that is late has as long
        again."""
        peer, mark = primary.peers[node], self._marks.get(node)
        heard_at = max(alive_at, self._heard_at.get(node, -inf))
        if mark is None or (peer.begun and peer.end >= mark.end and heard_at >= mark.at):
            self._marks[node] = _Mark(primary.log.end, now)
            return False
        late = now - mark.at > LATE_SECONDS
        if late:
            self._marks[node] = _Mark(primary.log.end, now)
        return late

    def lacks_an_answer(self, primary: Primary, node: str, now: float) -> bool:
        """Whether what it was sent may be lost, so that it is to be told again."""
        peer = primary.peers[node]
        waits = not peer.begun or peer.end < primary.log.end
        silent = now - max(self._heard_at.get(node, -inf), self._told_at.get(node, -inf))
        if not waits or silent <= TELL_SECONDS:
            return False
        self._told_at[node] = now
        return True

    def lacks_news(self, primary: Primary, node: str, now: float) -> bool:
        """Whether all copies are further than the node was told last."""
        news = (primary.checkpoint, primary.acked)
        due = now - self._told_at.get(node, -inf) > TELL_SECONDS
        if not primary.peers[node].begun or not due or self._told.get(node) == news:
            return False
        self._told_at[node], self._told[node] = now, news
        return True
