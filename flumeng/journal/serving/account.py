"""What a journal holds, for people: told by its server, shown by the command line. Light."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Account:
    """``acked``: up to where the journal's flow has acked it, whoever else reads it.
    ``oldest_unacked_us``: when the oldest event that is not acked was received, in microseconds
    since the epoch; ``newest_us``: the time of the newest event, where the clock that stamps events
    is not that of whoever looks. ``waits_at``: where readers stop until an operator accepts a loss.
    ``acked_minute_ago`` and ``safe_minute_ago`` are None while the server does not know them. An
    event, or what else is counted there, has ``step`` offsets. ``unacked_bytes`` and
    ``unacked_bytes_minute_ago`` are None where nobody knows how many wait.
    ``lags``: of a replicated journal, how many events the copy on each other node lacks.
    ``problem``: why readers wait; empty when they need not."""

    term: int
    durability: str
    floor: int
    acked: int
    safe: int
    bytes: int
    max_bytes: int
    lost: int
    waits_at: int | None
    closed: bool
    oldest_unacked_us: int | None
    acked_minute_ago: int | None = None
    safe_minute_ago: int | None = None
    newest_us: int | None = None
    step: int = 1
    unacked_bytes: int | None = None
    unacked_bytes_minute_ago: int | None = None
    lags: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""

    @property
    def events(self) -> int:
        """How many are kept."""
        return self.safe - self.floor

    @property
    def unacked(self) -> int:
        return self.distance(self.acked, self.safe)

    @property
    def unacked_minute_ago(self) -> int | None:
        if self.safe_minute_ago is None or self.acked_minute_ago is None:
            return None
        return self.distance(self.acked_minute_ago, self.safe_minute_ago)

    def distance(self, start: int, end: int) -> int:
        """How many lie between two offsets."""
        return -(-(end - start) // self.step)
