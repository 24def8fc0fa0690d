"""Plans the next batch: exact half-open ranges, cut into splits. No I/O. When a batch cannot hold
everything, partitions get equal shares. Capacity that small partitions do not need goes to the
larger ones: a loud host never starves the quiet ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flumeng.connectors.api.ranged import Contents, Range, Split

MOST = 1000
"""Most ranges in a batch: its acks share one transaction. Ranges of the most events go first."""


@dataclass(frozen=True)
class Scale:
    """Counts the events of ranges: one per offset, except in the partitions of ``contents``."""

    contents: Mapping[str, Contents] = field(default_factory=dict)

    def events(self, piece: Range) -> int:
        contents = self.contents.get(piece.partition)
        return piece.events if contents is None else contents.events(piece.start, piece.end)

    def total(self, ranges: Iterable[Range]) -> int:
        return sum(map(self.events, ranges))

    def head(self, piece: Range, events: int) -> Range:
        """Return the beginning of ``piece`` with about ``events`` events; never empty."""
        contents = self.contents.get(piece.partition)
        if contents is None:
            end = min(piece.end, piece.start + max(1, events))
        else:
            end = contents.cut(piece.start, piece.end, events)
        return replace(piece, end=end)


COUNTED = Scale()


def backlog(starts: Mapping[str, int], safe: Mapping[str, int], scale: Scale = COUNTED) -> int:
    """Return the number of waiting events in the partitions whose safe offset is known."""
    return scale.total(
        Range(name, starts[name], end) for name, end in safe.items() if end > starts[name]
    )


def next_ranges(
    starts: Mapping[str, int],
    safe: Mapping[str, int],
    limit: int,
    replayed_below: Mapping[str, int],
    scale: Scale = COUNTED,
) -> tuple[Range, ...]:
    """Return ranges of about ``limit`` events from ``starts`` up to ``safe``. No range crosses its
    partition's offset in ``replayed_below``: events below may have been delivered before."""
    waiting: list[tuple[int, str, Range]] = []
    for name, end in safe.items():
        start = starts[name]
        mark = replayed_below.get(name, 0)
        until = min(end, mark) if start < mark else end
        if until > start:
            whole = Range(name, start, until, replayed=start < mark)
            waiting.append((scale.events(whole), name, whole))
    ranges = []
    left = limit
    smallest_first = sorted(waiting)[-MOST:]
    for position, (_, _, whole) in enumerate(smallest_first):
        share = -(-left // (len(smallest_first) - position))
        if share <= 0:
            break
        taken = scale.head(whole, share)
        ranges.append(taken)
        left -= scale.events(taken)
    return tuple(sorted(ranges, key=lambda r: r.partition))


def split(
    ranges: Sequence[Range], parts: int, least_events: int, scale: Scale = COUNTED
) -> tuple[Split, ...]:
    """Cut ``ranges`` in order into at most ``parts`` splits of about equal size, if possible of
    ``least_events`` or more. Where offsets do not count events, splits may be empty."""
    total = scale.total(ranges)
    if total == 0:
        return ()
    parts = max(1, min(parts, total // max(1, least_events)))
    borders = [total * (part + 1) // parts for part in range(parts)]
    splits: list[list[Range]] = [[] for _ in borders]
    taken = part = 0
    for whole in ranges:
        rest = whole
        while rest.start < rest.end:
            while part + 1 < parts and taken >= borders[part]:
                part += 1
            last = part + 1 == parts
            piece = rest if last else scale.head(rest, borders[part] - taken)
            splits[part].append(piece)
            taken += scale.events(piece)
            rest = replace(rest, start=piece.end)
    return tuple(tuple(pieces) for pieces in splits)


def share_out(
    ranges: Sequence[Range], parts: int, least_events: int, scale: Scale = COUNTED
) -> tuple[Split, ...]:
    """Split in any order, without cutting a range: lines of one event may be anywhere in it."""
    total = scale.total(ranges)
    parts = max(1, min(parts, len(ranges), total // max(1, least_events)))
    ordered = sorted(ranges, key=lambda r: r.partition)
    shares = spread([scale.events(whole) for whole in ordered], parts)
    return tuple(tuple(ordered[number] for number in share) for share in shares if share)


def spread(weights: Sequence[int], most: int) -> list[list[int]]:
    """Divide the indexes of ``weights`` into at most ``most`` shares of about equal weight."""
    shares: list[list[int]] = [[] for _ in range(min(most, len(weights)))]
    loads = [0] * len(shares)
    for number in sorted(range(len(weights)), key=lambda n: -weights[n]):
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += weights[number]
    return shares


class BatchSize:
    """Adapts the number of events in a batch so that it takes about ``target_seconds``.

    Follows the measured rate, at most by a factor of two a batch. A batch that was not full counts
    only if it was large and slow. Small batches may take longer: they share jobs. A batch too wide
    for its sink sets a ceiling, which rises slowly. ``most_bytes`` limits a batch by the largest
    recent mean size of events. A batch of an input with a limited ``rate``, in bytes per second,
    takes about ``PACED_SECONDS`` at most: a unit that waits for long counts as hung.
    """

    TARGET_SECONDS = 1.5
    REMOTE_SECONDS = 6.0
    """For events of another site: at the end of each batch the line runs empty for a round trip."""
    FIRST = 200_000
    LEAST = 200
    """A batch this small never makes more files than one commit can hold."""
    SMALL = 20_000
    SMALL_SECONDS = 10.0
    PACED_SECONDS = 4.0
    CEILING_GROWTH = 1.05
    GUESSED_BYTES = 1024.0
    LIGHTER = 0.9
    """Factor by which the assumed size of events shrinks at each batch of lighter events."""

    def __init__(
        self, cap: int, most_bytes: int | None = None, target_seconds: float = TARGET_SECONDS
    ) -> None:
        self.cap = cap
        self.target_seconds = target_seconds
        self.most_bytes = most_bytes
        self.rate = 0
        self._event_bytes: float | None = None
        self._ceiling = float(cap)
        self._set(self.FIRST)

    @property
    def limits(self) -> tuple[int, int | None, float]:
        return self.cap, self.most_bytes, self.target_seconds

    def measured(self, events: int, seconds: float) -> None:
        if events < self.events and (events <= self.SMALL or seconds <= self.target_seconds):
            return
        self._ceiling = min(self._ceiling * self.CEILING_GROWTH, self.cap)
        rate = events / max(seconds, 1e-3)
<<<<<<< HEAD
        small_seconds = self.PACED_SECONDS if self.rate else self.SMALL_SECONDS
        ideal = max(rate * self.TARGET_SECONDS, min(rate * small_seconds, self.SMALL))
=======
        ideal = max(rate * self.target_seconds, min(rate * self.SMALL_SECONDS, self.SMALL))
>>>>>>> relay
        self._set(min(max(ideal, self.events / 2), self.events * 2))

    def pace(self, rate: int) -> None:
        """Follow the rate limit of the input; 0: none."""
        if rate != self.rate:
            self.rate = rate
            self._set(self.events)

    def weighed(self, event_bytes: float) -> None:
        self._event_bytes = max(event_bytes, (self._event_bytes or 0.0) * self.LIGHTER)
        self._set(self.events)

    def failed(self) -> None:
        self._set(self.events / 2)

    def too_wide(self) -> None:
        self._ceiling = max(self.LEAST, self.events / 2)
        self._set(self._ceiling)

    def _set(self, events: float) -> None:
        cap, event_bytes = float(self.cap), self._event_bytes or self.GUESSED_BYTES
        if self.most_bytes is not None:
            cap = min(cap, max(1.0, self.most_bytes / event_bytes))
        if self.rate:
            cap = min(cap, max(self.LEAST, self.rate * self.PACED_SECONDS / event_bytes))
        self.events = int(min(max(self.LEAST, events), self._ceiling, cap))


class Handoff:
    """An operator's request to deliver the backlog at once; unreadable partitions keep it open."""

    def __init__(self) -> None:
        self._ends: dict[str, int | None] = {}
        """Partition -> the offset to deliver up to; None until the partition's end is known."""

    @property
    def done(self) -> bool:
        return not self._ends

    def begin(self, partitions: Collection[str]) -> None:
        self._ends = dict.fromkeys(partitions)

    def is_due(self, safe: Mapping[str, int], delivered: Mapping[str, int]) -> bool:
        """Return whether requested events in ``safe`` are in no batch yet. Updates the request."""
        due = False
        for name in self._ends.keys() & safe.keys():
            requested = self._ends[name]
            end = safe[name] if requested is None else min(requested, safe[name])
            if end > delivered[name]:
                self._ends[name] = end
                due = True
            else:
                del self._ends[name]
        return due
