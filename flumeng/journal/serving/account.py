"""The state of a journal, for display. Imports little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Account:
    """The state of a journal or discovered partition; None means unknown or none. ``acked``: the
    ack of its own flow. ``oldest_unacked_us``: receive time of the oldest unacked event;
    ``newest_us``: time of the newest event, by another clock than the reader's. ``waits_at``: the
    offset of a loss that no operator accepted, at which readers stop. ``step``: offsets per event.
    ``lags``: by node, the events that its replica lacks. ``problem``: why readers wait, or "".
    ``sizes``: the first offset and the bytes of parts of a journal, in order."""

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
    sizes: Sequence[Sequence[int]] = ()

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

    def bytes_from(self, offset: int) -> int:
        """Return the bytes of the events from ``offset`` on; within a part, by their mean size."""
        sizes = [*self.sizes] or [(self.floor, self.bytes)]
        ends = [first for first, _ in sizes[1:]] + [self.safe]
        parts = ((first, nbytes, end) for (first, nbytes), end in zip(sizes, ends, strict=True))
        return sum(
            nbytes * (end - max(first, offset)) // (end - first)
            for first, nbytes, end in parts
            if max(first, offset) < end
        )

    def distance(self, start: int, end: int) -> int:
        return -(-(end - start) // self.step)
