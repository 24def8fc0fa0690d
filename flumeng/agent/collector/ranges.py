"""Which events the next batch takes: exact half-open ranges, cut into splits. Pure.

A partition's range starts where the last one ended and never passes its safe offset. When there
is more than a batch may hold, every partition gets an equal share, and what a small one leaves
over goes to the others, so that one loud host never starves the quiet ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flumeng.connectors.api.ranged import Contents, Range, Split

MOST = 1000
"""Ranges in a batch: all their acks must fit into one transaction. The longest go first."""


@dataclass(frozen=True)
class Scale:
    """How many events ranges have: as many as offsets, but of the partitions in ``contents``."""

    contents: Mapping[str, Contents] = field(default_factory=dict)

    def events(self, piece: Range) -> int:
        contents = self.contents.get(piece.partition)
        return piece.events if contents is None else contents.events(piece.start, piece.end)

    def total(self, ranges: Iterable[Range]) -> int:
        return sum(map(self.events, ranges))

    def head(self, piece: Range, events: int) -> Range:
        """The beginning of ``piece`` with about so many events, which is not empty."""
        contents = self.contents.get(piece.partition)
        if contents is None:
            end = min(piece.end, piece.start + max(1, events))
        else:
            end = contents.cut(piece.start, piece.end, events)
        return replace(piece, end=end)


COUNTED = Scale()


def backlog(starts: Mapping[str, int], safe: Mapping[str, int], scale: Scale = COUNTED) -> int:
    """How many events wait in the partitions whose safe offset is known."""
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
    """About ``limit`` events from ``starts`` up to ``safe``, which lacks who cannot be reached; not
    more, where offsets count them.

    A range does not cross its partition's mark in ``replayed_below``: below it events may have
    been delivered before, above it not.
    """
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
    """Cut ``ranges`` into at most ``parts`` splits of about equal size, none meant to be under
    ``least_events``; exactly equal where offsets count events.

    Fewer events than that make one split. Order is kept and nothing is lost or doubled. What
    cannot be cut may leave splits empty.
    """
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
    """As ``split``, but no range is cut: what belongs together may be anywhere in it."""
    total = scale.total(ranges)
    parts = max(1, min(parts, len(ranges), total // max(1, least_events)))
    splits: list[list[Range]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for whole in sorted(ranges, key=lambda r: (-scale.events(r), r.partition)):
        least = loads.index(min(loads))
        splits[least].append(whole)
        loads[least] += scale.events(whole)
    return tuple(tuple(pieces) for pieces in splits if pieces)


class BatchSize:
    """How many events the next batch should hold so that it takes about ``target_seconds``.

    Follows the measured rate, at most by a factor of two a batch. A batch that was not full says
    nothing about the rate of a full one, unless it was large and took too long. Small batches may
    take longer: most of their time is not for their events, and may be for others in their job. A
    batch that was too wide for its sink sets a ceiling, which rises slowly with each full batch,
    since what made it wide may be over. With ``most_bytes`` no batch holds more events than have
    about so many, by the heaviest of the last batches.
    """

    FIRST = 200_000
    LEAST = 200
    """So few events never make more files than one commit can hold."""
    SMALL = 20_000
    SMALL_SECONDS = 10.0
    CEILING_GROWTH = 1.05
    GUESSED_BYTES = 1024.0
    """Of an event, before any has been read."""
    LIGHTER = 0.9
    """What a batch of lighter events counts for."""

    def __init__(
        self, cap: int, target_seconds: float = 1.5, most_bytes: int | None = None
    ) -> None:
        self.cap = cap
        self.most_bytes = most_bytes
        self.target_seconds = target_seconds
        self._event_bytes: float | None = None
        self._ceiling = float(cap)
        self._set(self.FIRST)

    def measured(self, events: int, seconds: float) -> None:
        """A batch of ``events`` took ``seconds`` of work."""
        if events < self.events and (events <= self.SMALL or seconds <= self.target_seconds):
            return
        self._ceiling = min(self._ceiling * self.CEILING_GROWTH, self.cap)
        rate = events / max(seconds, 1e-3)
        ideal = max(rate * self.target_seconds, min(rate * self.SMALL_SECONDS, self.SMALL))
        self._set(min(max(ideal, self.events / 2), self.events * 2))

    def weighed(self, event_bytes: float) -> None:
        """An event of the last batch had so many bytes as it was read."""
        self._event_bytes = max(event_bytes, (self._event_bytes or 0.0) * self.LIGHTER)
        self._set(self.events)

    def failed(self) -> None:
        """The last batch failed, perhaps because it was so large."""
        self._set(self.events / 2)

    def too_wide(self) -> None:
        """The last batch would have made too many files."""
        self._ceiling = max(self.LEAST, self.events / 2)
        self._set(self._ceiling)

    def _set(self, events: float) -> None:
        cap = float(self.cap)
        if self.most_bytes is not None:
            cap = min(cap, max(1.0, self.most_bytes / (self._event_bytes or self.GUESSED_BYTES)))
        self.events = int(min(max(self.LEAST, events), self._ceiling, cap))


class Handoff:
    """What is to be delivered at once, of all that was there when somebody asked, in one claim.
    Partitions that cannot be read keep it from being done."""

    def __init__(self) -> None:
        self._ends: dict[str, int | None] = {}
        """Partition -> what is to be delivered without waiting for more; None until it is seen."""

    @property
    def done(self) -> bool:
        """Whether all of it is in a batch, or there was none."""
        return not self._ends

    def begin(self, partitions: Collection[str]) -> None:
        """All that is safe in ``partitions`` when they are looked at next."""
        self._ends = dict.fromkeys(partitions)

    def look(self, safe: Mapping[str, int], delivered: Mapping[str, int]) -> bool:
        """Whether something of it can be read and is in no batch yet."""
        for name in self._ends.keys() & safe.keys():
            known = self._ends[name]
            end = safe[name] if known is None else min(known, safe[name])
            if end > delivered[name]:
                self._ends[name] = end
            else:
                del self._ends[name]
        return any(end is not None for end in self._ends.values())
