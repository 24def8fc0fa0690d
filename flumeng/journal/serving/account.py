"""The state of a journal, for display. Imports little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Account:
    """The state of a journal or discovered partition; None means unknown or none. ``acked``: the
    ack of its own flow. ``oldest_unacked_us``: receive time of the oldest unacked event;
    ``newest_us``: time of the newest event, by another clock than the reader's. ``waits_at``: the
    offset of a loss that no operator accepted, at which readers stop. ``step``: offsets per event.
    ``lags``: by node, the events that its replica lacks. ``problem``: why readers wait, or ""."""

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
        return -(-(end - start) // self.step)
