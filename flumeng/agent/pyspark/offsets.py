"""Where a reader is in the journals of a flow: journal -> seq, below which everything is read.

Pure. A journal that is not named is read from 0 on, so that one of which nothing was read yet need
not be named. Offsets never go back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flumeng.connectors.api.ranged import Range

Offsets = Mapping[str, int]


def limited(start: Offsets, reached: Offsets, most: int) -> dict[str, int]:
    """As far as ``reached`` says, but no more than ``most`` events (at least 1) behind ``start``.

    Each journal gets a share of ``most`` in the proportion of what it has, so that they reach their
    ends together. What ``start`` names and ``reached`` does not stays where it is, and so does a
    journal that reaches less far than it was read.
    """
    waiting = {name: max(0, end - start.get(name, 0)) for name, end in reached.items()}
    total = sum(waiting.values())
    end = dict(start)
    left = most
    for name in sorted(waiting):
        count = waiting[name]
        if total > most:
            count = min(left, -(-count * most // total))
        left -= count
        if count:
            end[name] = start.get(name, 0) + count
    return ordered(end)


def ordered(offsets: Offsets) -> dict[str, int]:
    """In the order of their names: Spark compares offsets as text."""
    return {name: offsets[name] for name in sorted(offsets) if offsets[name]}


def ranges(start: Offsets, end: Offsets, *, replayed: bool = False) -> list[Range]:
    """What lies between the two, by journal."""
    return [
        Range(name, start.get(name, 0), end[name], replayed)
        for name in sorted(end)
        if start.get(name, 0) < end[name]
    ]


def splits(wanted: Sequence[Range], events: int) -> list[tuple[Range, ...]]:
    """The ranges in parts of ``events`` each, but for the last: one may be cut."""
    parts: list[list[Range]] = []
    room = 0
    for piece in wanted:
        at = piece.start
        while at < piece.end:
            if not room:
                parts.append([])
                room = events
            taken = min(room, piece.end - at)
            parts[-1].append(Range(piece.partition, at, at + taken, piece.replayed))
            at, room = at + taken, room - taken
    return [tuple(part) for part in parts]
