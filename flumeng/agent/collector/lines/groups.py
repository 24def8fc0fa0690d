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
7. While lines to come decide whether the last ones belong to a group, it is open, and its pieces
   that reach beyond the first of these lines. ``emitted`` does not pass that line, though it be in
   a group that was emitted: a longer batch may have emitted the group without it.

Lines may be ``Pieces`` of messages. A line goes on with the message of the line before it in its
stream when that line is marked so; it starts no event and leaves a machine's state as it is.

8. ``Progress.sure`` is what 3 and 6 say, and ``offset`` lies below it where the last line below
   ``sure`` of a stream tells that the next one goes on. Such lines are read again for nothing else,
   so that one of them never makes another necessary. A line without one before it begins a message.
9. A message is cut only when it is too large by itself; else all its lines are where its first is:
   loose ones are emitted, or cut off at ``emitted``, with their message, and ``offset`` stays at
   the first line of one that reaches beyond ``emitted``.
10. Whether a message starts an event is known when it is whole; until then the group before it is
    open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flumeng.agent.collector.lines.machine import Flags, Machine, Numbers
from flumeng.agent.collector.lines.pauses import InStreams
from flumeng.config.traces import OTHER
from flumeng.connectors.api.ranged import Progress

ENDED, TIMEOUT, MAX_LINES, MAX_BYTES = range(4)
"""Why a group is closed: the first is by the start of the next."""


@dataclass(frozen=True)
class Pieces:
    """Marks of lines that are pieces of messages. ``unfinished``: the message continues in the next
    line of the stream. ``continues``: the line continues the message of the line before it.
    ``alone``: each message is an event."""

    unfinished: Flags
    continues: Flags
    alone: bool

    def take(self, rows: Numbers) -> Pieces:
        return Pieces(self.unfinished[rows], self.continues[rows], self.alone)


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
    pieces: Pieces | None = None

    def take(self, rows: Numbers) -> Lines:
        return Lines(
            self.offsets[rows],
            self.times[rows],
            self.streams[rows],
            self.starts[rows],
            self.sizes[rows],
            None if self.kinds is None else self.kinds[rows],
            None if self.pieces is None else self.pieces.take(rows),
        )


@dataclass(frozen=True)
class Limits:
    """Bounds of one event. ``timeout_us``: the longest pause between two of its lines.
    ``piece_us``: the longest pause between two pieces of one message."""

    timeout_us: int
    max_lines: int
    max_bytes: int
    piece_us: int = 0

    def patience(self, unfinished: Flags | None, count: int) -> Numbers:
        """How long the next line is waited for, behind each of ``count`` lines."""
        if unfinished is None:
            return np.full(count, self.timeout_us)
        return np.where(unfinished, max(self.piece_us, self.timeout_us), self.timeout_us)


@dataclass(frozen=True)
class Groups:
    """The groups to emit, by first lines. ``rows``: of the lines, group by group, each of
    ``counts`` rows. ``reasons``: why each is closed. ``unfinished``: a message is awaited.
    ``continues``: see ``Pieces``."""

    rows: Numbers
    counts: Numbers
    reasons: Numbers
    progress: Progress
    unfinished: bool = False
    continues: Flags | None = None


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
    Nothing is emitted while ``end`` lies below ``at.emitted``."""
    unfinished = None if lines.pieces is None else lines.pieces.unfinished
    patience = limits.patience(unfinished, len(lines.offsets))
    everything = InStreams.of(lines.times, lines.streams, patience, flush=flush)
    streams = everything.only(lines.offsets >= at.sure)
    mine = _Ordered(lines.take(streams.order), streams, limits)
    if machine is not None:
        mine.find_starts(machine)
    begins = np.flatnonzero(streams.fresh | mine.lines.starts | streams.pauses)
    bounds = _bounds(mine, begins, at.emitted, limits, machine)
    last = bounds.ends - 1
    following = np.minimum(bounds.ends, max(len(streams.order) - 1, 0))
    newest = (bounds.ends == len(streams.order)) | streams.fresh[following]
    closed = ~mine.waiting[last]
    late = np.where(newest, closed & ~flush, streams.pauses[following])
    several = mine.messages[bounds.ends] - mine.messages[bounds.begins] > 1
    told = mine.unfinished[last] | (several & ~mine.alone)
    reasons = np.where((late | (newest & flush)) & told, TIMEOUT, bounds.reasons)
    wholes = bounds.wholes - 1
    closed &= ~mine.undecided[wholes] | (bounds.ends <= mine.doubts[wholes])
    firsts, lasts = mine.lines.offsets[bounds.begins], mine.lines.offsets[last]
    known = bounds.headed & (firsts < at.emitted)
    emitted = int(np.min(firsts[~closed & ~known], initial=max(end, at.emitted)))
    doubted = mine.places[mine.doubts[wholes[known & mine.led[wholes]]]]
    emitted = int(np.min(doubted[doubted >= at.emitted], initial=emitted))
    across = bounds.headed & (firsts < emitted) & ((lasts >= emitted) | ~closed)
    sure = int(np.min(firsts[across], initial=emitted))
    if machine is not None:
        sure = _outside(sure, emitted, mine.lines.offsets, bounds, mine.waiting)
    chosen = np.flatnonzero(closed & ~known & (firsts < emitted))
    chosen = chosen[np.argsort(firsts[chosen])]
    begins, ends = bounds.begins[chosen], bounds.ends[chosen]
    for number in np.flatnonzero(~bounds.headed[chosen] & (lasts[chosen] >= emitted)):
        begin = begins[number]
        ends[number] = begin + np.searchsorted(mine.places[begin : ends[number]], emitted)
    going_on = mine.waiting & mine.unfinished
    beyond = (mine.places < emitted) & ((mine.lines.offsets >= emitted) | going_on)
    sure = int(np.min(mine.places[beyond], initial=sure))
    if end <= at.sure:  # nothing is seen yet of what begins there
        sure = min(sure, at.sure)
    counts = ends - begins
    rows = streams.order[_ranges(begins, counts)]
    progress = _progress(lines, everything, sure, emitted)
    continues = None if lines.pieces is None else lines.pieces.continues
    return Groups(rows, counts, reasons[chosen], progress, bool(going_on.any()), continues)


def _progress(lines: Lines, streams: InStreams, sure: int, emitted: int) -> Progress:
    """Progress with an offset early enough to tell what continues at ``sure``."""
    if lines.pieces is None or not lines.pieces.unfinished.any():
        return Progress(sure, emitted)
    offsets = lines.offsets[streams.order]
    told = streams.waiting & lines.pieces.unfinished[streams.order]
    told[:-1] |= lines.pieces.continues[streams.order][1:] & (offsets[1:] >= sure)
    offset = int(np.min(offsets[told], initial=sure))
    return Progress(offset, emitted, sure if offset < sure else 0)


class _Ordered:
    """Lines in the order of ``streams``. ``waiting``: more of its group may follow. ``undecided``:
    later lines decide whether its group ends there, or from the line ``doubts`` on; ``led``:
    because of the machine. ``places``: where its message begins, unless that is cut. ``messages``:
    how many have begun before each, and in all. ``alone``: each message is an event."""

    def __init__(self, lines: Lines, streams: InStreams, limits: Limits) -> None:
        count = len(lines.offsets)
        self.lines = lines
        self.streams = streams
        self.waiting = streams.waiting
        self.undecided = np.zeros(count, np.bool_)
        self.doubts = np.arange(count)
        self.led = np.zeros(count, np.bool_)
        self.unfinished = np.zeros(count, np.bool_)
        self.places = lines.offsets
        self.messages = self.heads = np.arange(count + 1)
        self.alone = False
        if lines.pieces is None:
            return
        self.unfinished, self.alone = lines.pieces.unfinished, lines.pieces.alone
        if self.alone:
            self.waiting = self.waiting & self.unfinished
        if lines.pieces.continues.any() or self.unfinished.any():
            self._count(lines.pieces.continues, limits)

    def _count(self, continues: Flags, limits: Limits) -> None:
        offsets, begins = self.lines.offsets, ~continues
        rows = np.arange(len(offsets))
        self.messages = np.concatenate(([0], np.cumsum(begins)))
        begun = begins | self.streams.fresh
        self.heads = np.append(np.maximum.accumulate(np.where(begun, rows, 0)), len(rows))
        first = np.flatnonzero(begun)
        numbers = np.cumsum(begun) - 1
        large = np.add.reduceat(self.lines.sizes + 1, first) - 1 > limits.max_bytes
        torn = large[numbers] | ~begins[first][numbers]
        self.places = np.where(torn, offsets, offsets[first][numbers])
        if not self.alone:
            heads = self.heads[np.flatnonzero(self.waiting & self.unfinished)]
            heads = heads[~(self.streams.fresh | self.streams.pauses)[heads]]
            self.undecided[heads - 1] = True

    def find_starts(self, machine: Machine) -> None:
        """The starts by ``machine``, and ends of streams where later lines may change them."""
        assert self.lines.kinds is not None
        unknown = self.streams.fresh | self.streams.pauses
        kinds, begins = self.lines.kinds.copy(), np.ones(len(self.lines.kinds), np.bool_)
        if self.lines.pieces is not None:
            begins = ~self.lines.pieces.continues
            going_on = self.heads[np.flatnonzero(self.waiting & self.unfinished)]
            kinds[going_on] = machine.names.index(OTHER)
        rows = np.flatnonzero(begins | self.streams.fresh)
        last = np.append(rows[1:], len(begins))[: len(rows)] - 1
        rows, last = rows[begins[rows]], last[begins[rows]]
        kinds[rows], undecided, doubts = machine.with_leads(
            kinds[rows], _any_from(unknown, rows), self.waiting[last]
        )
        kinds[~begins] = machine.going_on
        self.doubts[last[undecided]] = rows[doubts[undecided]]
        self.led[last[undecided]] = True
        self.undecided[last] |= undecided
        self.lines = replace(self.lines, kinds=kinds, starts=machine.starts(kinds, unknown))


def _any_from(flags: Flags, rows: Numbers) -> Flags:
    """Whether a row has the flag from behind the row before each of ``rows`` up to it."""
    before = np.concatenate(([0], np.cumsum(flags)))
    found: Flags = before[rows + 1] > before[np.append(0, rows[:-1] + 1)[: len(rows)]]
    return found


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


def _bounds(
    mine: _Ordered, begins: Numbers, emitted: int, limits: Limits, machine: Machine | None
) -> _Bounds:
    """The groups that begin at ``begins``, cut by size; loose lines below ``emitted`` are in no
    group."""
    ends = np.append(begins[1:], len(mine.lines.offsets))[: len(begins)]
    headed = mine.lines.starts[begins]
    total = np.concatenate(([0], np.cumsum(mine.lines.sizes + 1)))  # each line with its newline
    large = (mine.messages[ends] - mine.messages[begins] > limits.max_lines) | (
        (total[ends] - total[begins] - 1 > limits.max_bytes) & (ends - begins > 1)
    )
    special = large | (~headed & (mine.places[begins] < emitted))
    cut: list[tuple[int, int, int, bool, int]] = []
    for number in np.flatnonzero(special):
        whole = int(ends[number])
        left = [(int(begins[number]), whole, bool(headed[number]))]
        while left:
            begin, end, head = left.pop()
            if not head:
                begin += int(np.searchsorted(mine.places[begin:end], emitted))
                if begin == end:
                    continue
            until, reason = _cut(mine, total, begin, end, limits)
            cut.append((begin, until, whole, head, reason))
            if until < end:
                left += _rest(mine.lines, until, end, machine if head else None)
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
    """The groups behind a cut: begin, end and whether the first line starts an event. Without a
    ``machine``, and behind loose lines, one loose group."""
    if machine is None or lines.kinds is None:
        return [(begin, end, False)]
    unknown = np.zeros(end - begin, np.bool_)
    unknown[0] = True
    starts = machine.starts(lines.kinds[begin:end], unknown)
    begins = begin + np.flatnonzero(starts | unknown)
    ends = np.append(begins[1:], end)
    heads = starts[begins - begin]
    return list(zip(begins.tolist(), ends.tolist(), heads.tolist(), strict=True))


def _cut(mine: _Ordered, total: Numbers, begin: int, end: int, limits: Limits) -> tuple[int, int]:
    most = int(np.searchsorted(total, total[begin] + limits.max_bytes + 1, side="right")) - 1
    most = max(most, begin + 1)
    if most < end and mine.heads[most] > begin:
        most = int(mine.heads[most])
    lines = mine.messages[begin] + limits.max_lines
    lines = int(np.searchsorted(mine.messages, lines, side="right")) - 1
    if min(lines, most) >= end:
        return end, ENDED
    return (lines, MAX_LINES) if lines <= most else (most, MAX_BYTES)


def _ranges(begins: Numbers, counts: Numbers) -> Numbers:
    """All numbers of the ranges, range by range."""
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before, counts) + np.arange(int(counts.sum()))
