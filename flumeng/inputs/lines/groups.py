"""Groups of lines that belong together, and which of them may be emitted. Pure.

Two numbers say all that is known of a partition, ``Progress``. Everything below ``offset`` is
never needed again; of every line below ``emitted`` the event is emitted. Lines between the two are
read again, since some of them are the heads of events whose tails lie above ``emitted``.

A line *starts* an event, or else it follows the line before it in its stream. What follows a start
is *headed*: this group is the same however often, and from wherever at or below its start, it is
read. What follows no start that is near enough is *loose*: its start is below ``offset``, or too
long ago, or has as many lines as an event may have. A loose line below ``emitted`` was emitted, in
whatever event; those from there on are joined with each other.

1. A group is closed by the next group of its stream, or by time. A stream's pause is too long when
   a line of *any* stream was received after it: so what closes a group lies between two of its
   lines, and is seen by everyone who sees these.
2. ``emitted`` moves up to the first line of the oldest group that is open, and exactly the closed
   groups are emitted whose first line it passes. Loose lines are cut there.
3. ``offset`` moves up to the first line of the oldest headed group that has lines on both sides of
   ``emitted``. Whoever reads from there sees such a group whole, and knows by its first line
   that it was emitted. All other lines of the groups that were emitted lie below ``emitted``,
   where they are loose at the worst.
4. ``flush`` closes all groups: nothing is left to be read again.

With a ``Machine`` it depends on the lines before whether a line starts an event. A reader that
begins inside a group then takes some of its lines for starts. That is harmless while all lines
of the group lie below ``emitted``, as 2 and 3 make sure, since the machine starts the next group
all the same. Three things are added:

5. A pause, and a cut by size, leave the machine in its state ``unknown``, as a reader begins.
6. A reader inside a group that was cut does not know where. So ``offset`` never lies inside one
   while what follows the cut reaches beyond ``emitted``: it stays at its first line.
7. While lines to come decide whether the last ones belong to a group, it is open, and its pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flumeng.inputs import Progress
from flumeng.inputs.lines.machine import Flags, Machine, Numbers

ENDED, TIMEOUT, MAX_LINES, MAX_BYTES = range(4)
"""Why a group is closed: the first is by the start of the next."""


@dataclass(frozen=True)
class Lines:
    """Lines of one partition, all from ``Progress.offset`` on, in order. ``streams`` tells which
    stream each is of, ``times`` (microseconds) when it came, ``sizes`` how many bytes it has.
    ``kinds`` are those of a ``Machine``, which finds the ``starts`` then."""

    offsets: Numbers
    times: Numbers
    streams: Numbers
    starts: Flags
    sizes: Numbers
    kinds: Numbers | None = None

    def take(self, rows: Numbers) -> Lines:
        return Lines(
            self.offsets[rows],
            self.times[rows],
            self.streams[rows],
            self.starts[rows],
            self.sizes[rows],
            None if self.kinds is None else self.kinds[rows],
        )


@dataclass(frozen=True)
class Limits:
    """Of one event; ``timeout_us`` is the longest pause between two of its lines."""

    timeout_us: int
    max_lines: int
    max_bytes: int


@dataclass(frozen=True)
class Groups:
    """What is emitted, by first lines. ``rows``: of the lines, one group behind the other, each of
    ``counts`` rows. ``reasons``: why each group is closed."""

    rows: Numbers
    counts: Numbers
    reasons: Numbers
    progress: Progress


@dataclass(frozen=True)
class _Bounds:
    """Groups as [``begins``, ``ends``) in the order of streams. ``wholes``: where each would end if
    nothing were cut by size."""

    begins: Numbers
    ends: Numbers
    wholes: Numbers
    headed: Flags
    reasons: Numbers


def group(
    lines: Lines,
    at: Progress,
    end: int,
    limits: Limits,
    *,
    flush: bool,
    machine: Machine | None = None,
) -> Groups:
    """The groups to emit of ``lines``, which are all up to the offset ``end``; see the module.

    ``end`` may lie below ``at.emitted`` when more is to come: nothing is emitted then.
    """
    order = np.argsort(lines.streams, kind="stable")
    mine = lines.take(order)
    fresh = np.empty(len(order), np.bool_)
    fresh[:1] = True
    fresh[1:] = mine.streams[1:] != mine.streams[:-1]
    pauses = _pauses(lines.times, order, limits.timeout_us) & ~fresh
    waiting = _waiting(lines.times, order, fresh, limits.timeout_us, flush=flush)
    undecided = None
    if machine is not None:
        mine, undecided = _started(mine, machine, fresh | pauses, waiting)
    begins = np.flatnonzero(fresh | mine.starts | pauses)
    bounds = _bounds(mine, begins, at.emitted, limits, machine)
    last, following = bounds.ends - 1, np.minimum(bounds.ends, max(len(order) - 1, 0))
    newest = (bounds.ends == len(order)) | fresh[following]
    closed = ~waiting[last]
    late = np.where(newest, closed & ~flush, pauses[following])
    reasons = np.where(late | (newest & flush), TIMEOUT, bounds.reasons)
    if undecided is not None:
        closed &= ~undecided[bounds.wholes - 1]
    firsts, lasts = mine.offsets[bounds.begins], mine.offsets[last]
    known = bounds.headed & (firsts < at.emitted)
    emitted = int(np.min(firsts[~closed & ~known], initial=max(end, at.emitted)))
    across = bounds.headed & (firsts < emitted) & ((lasts >= emitted) | ~closed)
    offset = int(np.min(firsts[across], initial=emitted))
    if machine is not None:
        offset = _outside(offset, emitted, mine.offsets, bounds, waiting)
    chosen = np.flatnonzero(closed & ~known & (firsts < emitted))
    chosen = chosen[np.argsort(firsts[chosen])]
    begins, ends = bounds.begins[chosen], bounds.ends[chosen]
    for number in np.flatnonzero(~bounds.headed[chosen] & (lasts[chosen] >= emitted)):
        begin = begins[number]
        ends[number] = begin + np.searchsorted(mine.offsets[begin : ends[number]], emitted)
    counts = ends - begins
    rows = order[_ranges(begins, counts)]
    return Groups(rows, counts, reasons[chosen], Progress(offset, emitted))


def _started(lines: Lines, machine: Machine, unknown: Flags, waiting: Flags) -> tuple[Lines, Flags]:
    """``lines``, in the order of streams, with the starts that ``machine`` finds, and the ends of
    streams where lines to come may make others of them."""
    assert lines.kinds is not None
    kinds, undecided = machine.with_leads(lines.kinds, unknown, waiting)
    return replace(lines, kinds=kinds, starts=machine.starts(kinds, unknown)), undecided


def _outside(offset: int, emitted: int, offsets: Numbers, bounds: _Bounds, waiting: Flags) -> int:
    """``offset``, or the first line of the group that it lies in when this was cut by size and what
    follows the cut reaches beyond ``emitted``."""
    ends = bounds.wholes - 1
    beyond = (offsets[ends] >= emitted) | waiting[ends]
    cut = np.flatnonzero(bounds.headed & (bounds.reasons != ENDED) & beyond)
    firsts, lasts = offsets[bounds.begins[cut]], offsets[bounds.ends[cut] - 1]
    for number in np.argsort(-firsts):
        if firsts[number] < offset <= lasts[number]:
            offset = int(firsts[number])
    return offset


def _waiting(
    times: Numbers, order: Numbers, fresh: Flags, timeout_us: int, *, flush: bool
) -> Flags:
    """Which lines (in ``order``) are the last of their stream with more that may follow."""
    waiting = np.zeros(len(order), np.bool_)
    if not flush and len(order):
        ends = np.append(np.flatnonzero(fresh)[1:], len(order)) - 1
        waiting[ends] = ~_outlasted(times, order[ends], timeout_us)
    return waiting


def _pauses(times: Numbers, order: Numbers, timeout_us: int) -> Flags:
    """Whether, behind the line before each (in ``order``) and up to it, a line of the partition was
    received too late for the two to belong together. The clock may have been set back."""
    found = np.zeros(len(order), np.bool_)
    if len(order) < 2:
        return found
    mine = times[order]
    found[1:] = mine[1:] - mine[:-1] > timeout_us
    newest = np.maximum.accumulate(times)
    perhaps = newest[order[1:]] - mine[:-1] > timeout_us
    unsure = np.flatnonzero(perhaps & ~found[1:] & (order[1:] > order[:-1])) + 1
    if len(unsure):
        spans = np.column_stack((order[unsure - 1] + 1, order[unsure] + 1)).ravel()
        most = np.maximum.reduceat(np.append(times, 0), spans)[::2]
        found[unsure] = most - mine[unsure - 1] > timeout_us
    return found


def _outlasted(times: Numbers, rows: Numbers, timeout_us: int) -> Flags:
    """Whether a line of the partition came too long after each of the lines ``rows``."""
    after = np.full(len(times) + 1, np.iinfo(np.int64).min // 2)
    after[:-1] = np.maximum.accumulate(times[::-1])[::-1]
    outlasted: Flags = after[rows + 1] - times[rows] > timeout_us
    return outlasted


def _bounds(
    lines: Lines, begins: Numbers, emitted: int, limits: Limits, machine: Machine | None
) -> _Bounds:
    """The groups of ``lines``, which are in the order of streams, that would begin at ``begins`` if
    none were too large; loose lines below ``emitted`` are of no group."""
    starts, offsets, sizes = lines.starts, lines.offsets, lines.sizes
    ends = np.append(begins[1:], len(offsets))[: len(begins)]
    headed = starts[begins]
    total = np.concatenate(([0], np.cumsum(sizes + 1)))  # each line with its newline
    large = (ends - begins > limits.max_lines) | (
        (total[ends] - total[begins] - 1 > limits.max_bytes) & (ends - begins > 1)
    )
    special = large | (~headed & (offsets[begins] < emitted))
    cut: list[tuple[int, int, int, bool, int]] = []
    for number in np.flatnonzero(special):
        whole = int(ends[number])
        left = [(int(begins[number]), whole, bool(headed[number]))]
        while left:
            begin, end, head = left.pop()
            if not head:
                begin += int(np.searchsorted(offsets[begin:end], emitted))
                if begin == end:
                    continue
            until, reason = _cut(total, begin, end, limits)
            cut.append((begin, until, whole, head, reason))
            if until < end:
                left += _rest(lines, until, end, machine if head else None)
    plain = ~special
    more = np.array(cut, np.int64).reshape(-1, 5)
    return _Bounds(
        np.concatenate((begins[plain], more[:, 0])),
        np.concatenate((ends[plain], more[:, 1])),
        np.concatenate((ends[plain], more[:, 2])),
        np.concatenate((headed[plain], more[:, 3].astype(np.bool_))),
        np.concatenate((np.zeros(int(plain.sum()), np.int64), more[:, 4])),
    )


def _rest(
    lines: Lines, begin: int, end: int, machine: Machine | None
) -> list[tuple[int, int, bool]]:
    """The groups behind a cut, as begin, end and whether the first line starts an event. Without a
    ``machine``, and behind what was loose already, all is one loose group."""
    if machine is None or lines.kinds is None:
        return [(begin, end, False)]
    unknown = np.zeros(end - begin, np.bool_)
    unknown[0] = True
    starts = machine.starts(lines.kinds[begin:end], unknown)
    begins = begin + np.flatnonzero(starts | unknown)
    ends = np.append(begins[1:], end)
    heads = starts[begins - begin]
    return list(zip(begins.tolist(), ends.tolist(), heads.tolist(), strict=True))


def _cut(total: Numbers, begin: int, end: int, limits: Limits) -> tuple[int, int]:
    """Where a group that begins there ends, at the latest, and why."""
    most = int(np.searchsorted(total, total[begin] + limits.max_bytes + 1, side="right")) - 1
    most = max(most, begin + 1)
    if min(begin + limits.max_lines, most) >= end:
        return end, ENDED
    if begin + limits.max_lines <= most:
        return begin + limits.max_lines, MAX_LINES
    return most, MAX_BYTES


def _ranges(begins: Numbers, counts: Numbers) -> Numbers:
    """All numbers of the ranges, one range behind the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before, counts) + np.arange(int(counts.sum()))
