"""Detects, by the primary's clock, late replicas and messages to send or repeat. Idle journals send
nothing: pings on one link per node show that the node is alive."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from flumeng.journal.replication.primary import Primary

LATE_SECONDS = 5.0
"""Seconds that a replica has to answer, and to store all events that the log has at their start."""
RESEND_SECONDS = 1.0
"""Minimum seconds between two repeated messages to a replica."""


class _Mark(NamedTuple):
    """The log's end at a time: the replica must store these events, and its node answer since."""

    end: int
    at: float


class ReplicaLag:
    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}
        self._received_at: dict[str, float] = {}
        self._sent_at: dict[str, float] = {}
        self._sent: dict[str, tuple[int, int]] = {}

    def begin(self) -> None:
        """Start the time limits again, since no replica is late when a primary begins."""
        self._marks.clear()
        self._sent.clear()

    def received(self, node: str, now: float) -> None:
        self._received_at[node] = now

    def is_late(self, primary: Primary, node: str, now: float, alive_at: float) -> bool:
        """Return whether the replica is late. Its time limit starts again then, and when met."""
        peer, mark = primary.peers[node], self._marks.get(node)
        received_at = max(alive_at, self._received_at.get(node, -inf))
        if mark is None or (peer.begun and peer.end >= mark.end and received_at >= mark.at):
            self._marks[node] = _Mark(primary.log.end, now)
            return False
        late = now - mark.at > LATE_SECONDS
        if late:
            self._marks[node] = _Mark(primary.log.end, now)
        return late

    def lacks_an_answer(self, primary: Primary, node: str, now: float) -> bool:
        """Return whether a message may be lost and must be repeated; counts as sent now if so."""
        peer = primary.peers[node]
        waits = not peer.begun or peer.end < primary.log.end
        silent = now - max(self._received_at.get(node, -inf), self._sent_at.get(node, -inf))
        if not waits or silent <= RESEND_SECONDS:
            return False
        self._sent_at[node] = now
        return True

    def lacks_news(self, primary: Primary, node: str, now: float) -> bool:
        """Return whether the node needs a newer checkpoint or ack; counts as sent now if so."""
        news = (primary.checkpoint, primary.acked)
        due = now - self._sent_at.get(node, -inf) > RESEND_SECONDS
        if not primary.peers[node].begun or not due or self._sent.get(node) == news:
            return False
        self._sent_at[node], self._sent[node] = now, news
        return True
