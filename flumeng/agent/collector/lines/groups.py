"""Groups lines that belong together, and chooses the groups to emit. Pure.

``Progress`` keeps offsets of a partition (``sure``: see rule 8). Nothing below ``offset`` is ever
needed again; every line below ``emitted`` belongs to an emitted event. Lines between the two are
reread, since some are the heads of events whose tails lie above ``emitted``.

A line either *starts* an event or follows the line before it in its stream. A group that contains
its start is *headed*: every reader that begins at or below the start sees the same group. Lines
without a near start are *headless*: their start is below ``offset``, too old, or already has as
many lines as an event may have. A headless line below ``emitted`` was emitted in some event;
headless lines above are joined with each other.

1. A group is closed by the next group of its stream, or by time. A stream's pause is too long when
   a line of *any* stream was received after it: so the cause of closing lies between two of its
   lines, and every reader of these lines sees it.
2. ``emitted`` moves up to the first line of the oldest open group; exactly the closed groups whose
   first line it passes are emitted. Headless groups are cut there.
3. ``offset`` moves up to the first line of the oldest headed group with lines on both sides of
   ``emitted``. A reader that begins there sees such a group whole, and knows by its first line that
   it was emitted. All other lines of emitted groups lie below ``emitted``, where they are at worst
   headless.
4. ``flush`` closes all groups: no line has to be reread.

With a ``Machine``, earlier lines decide whether a line starts an event. A reader that begins inside
a group then takes some of its lines for starts. That is harmless while all lines of the group lie
below ``emitted``, as 2 and 3 ensure, since the machine still starts the next group. Three rules are
added:

5. A pause, and a cut by size, reset the machine to its state ``unknown``, where a reader begins.
6. A reader inside a cut group cannot find the cut. So ``offset`` never lies inside such a group
   while lines after the cut extend beyond ``emitted``: it stays at the group's first line.
7. While later lines decide whether the last ones belong to a group, that group stays open, and so
   do its pieces beyond the first of these lines. ``emitted`` does not pass that line, even inside
   an emitted group: a longer batch may have emitted the group without it.

Lines may be ``Pieces`` of messages. A line continues the message of the line before it in its
stream when that earlier line is marked as unfinished. It then starts no event and leaves a
machine's state as it is.

8. ``Progress.sure`` is the offset by 3 and 6. ``offset`` lies below it where the last line of a
   stream below ``sure`` is marked as unfinished. Such lines are reread for their mark only, so that
   one of them never makes another necessary. A line without one before it begins a message.
9. A message is cut only when it is too large by itself. Else all its lines share the place of its
   first line: headless lines are emitted, or cut off at ``emitted``, with their message, and
   ``offset`` stays at the first line of a message that extends beyond ``emitted``.
10. Only a whole message shows whether it starts an event; until then the group before it is open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flumeng.agent.collector.lines.machine import Flags, Machine, Numbers
from flumeng.agent.collector.lines.pauses import InStreams
from flumeng.config.stack_traces import OTHER
from flumeng.connectors.api.ranged import Progress

ENDED, TIMEOUT, MAX_LINES, MAX_BYTES = range(4)
"""Reasons for closing a group. ENDED: the next event began, or time closed one whole message."""


@dataclass(frozen=True)
class Pieces:
    """Flags of each line, where lines are pieces of messages. ``unfinished``: the message continues
    in the stream's next line. ``continues``: the line continues the message of the line before it.
    ``alone``: each message is an event."""

    unfinished: Flags
    continues: Flags
    alone: bool

    def take(self, rows: Numbers) -> Pieces:
        return Pieces(self.unfinished[rows], self.continues[rows], self.alone)


@dataclass(frozen=True)
class Lines:
    """All lines of one partition from ``Progress.offset`` on, in order. ``times``: of receipt, in
    microseconds. ``sizes``: in bytes. With ``kinds``, a ``Machine`` computes ``starts``."""

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
        """Return the longest pause allowed after each of ``count`` lines, in microseconds."""
        if unfinished is None:
            return np.full(count, self.timeout_us)
        return np.where(unfinished, max(self.piece_us, self.timeout_us), self.timeout_us)


@dataclass(frozen=True)
class Groups:
    """Groups to emit, ordered by first lines. ``rows``: the groups' lines, one group after another.
    ``counts``: number of lines of each group. ``reasons``: why each is closed. ``unfinished``: a
    message lacks its end. ``continues``: that of ``Pieces``, for all lines."""

    rows: Numbers
    counts: Numbers
    reasons: Numbers
    progress: Progress
    unfinished: bool = False
    continues: Flags | None = None


@dataclass(frozen=True)
class _Bounds:
    """Groups, unsorted: [``begins``, ``ends``) in stream order. ``wholes``: ends before cuts."""

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
    """Choose the groups to emit out of all ``lines`` up to the offset ``end``, by the rules of this
    module. There are none while ``end`` lies below ``at.emitted``."""
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
    reported = mine.unfinished[last] | (several & ~mine.alone)
    reasons = np.where((late | (newest & flush)) & reported, TIMEOUT, bounds.reasons)
    wholes = bounds.wholes - 1
    closed &= ~mine.undecided[wholes] | (bounds.ends <= mine.doubts[wholes])
    firsts, lasts = mine.lines.offsets[bounds.begins], mine.lines.offsets[last]
    emitted_before = bounds.headed & (firsts < at.emitted)
    emitted = int(np.min(firsts[~closed & ~emitted_before], initial=max(end, at.emitted)))
    doubted = mine.places[mine.doubts[wholes[emitted_before & mine.led[wholes]]]]
    emitted = int(np.min(doubted[doubted >= at.emitted], initial=emitted))
    across = bounds.headed & (firsts < emitted) & ((lasts >= emitted) | ~closed)
    sure = int(np.min(firsts[across], initial=emitted))
    if machine is not None:
        sure = _outside(sure, emitted, mine.lines.offsets, bounds, mine.waiting)
    chosen = np.flatnonzero(closed & ~emitted_before & (firsts < emitted))
    chosen = chosen[np.argsort(firsts[chosen])]
    begins, ends = bounds.begins[chosen], bounds.ends[chosen]
    for number in np.flatnonzero(~bounds.headed[chosen] & (lasts[chosen] >= emitted)):
        begin = begins[number]
        ends[number] = begin + np.searchsorted(mine.places[begin : ends[number]], emitted)
    going_on = mine.waiting & mine.unfinished
    beyond = (mine.places < emitted) & ((mine.lines.offsets >= emitted) | going_on)
    sure = int(np.min(mine.places[beyond], initial=sure))
    if end <= at.sure:  # lines from there on are not read yet
        sure = min(sure, at.sure)
    counts = ends - begins
    rows = streams.order[_ranges(begins, counts)]
    progress = _progress(lines, everything, sure, emitted)
    continues = None if lines.pieces is None else lines.pieces.continues
    return Groups(rows, counts, reasons[chosen], progress, bool(going_on.any()), continues)


def _progress(lines: Lines, streams: InStreams, sure: int, emitted: int) -> Progress:
    """Return the progress; its offset is low enough to show which messages continue at ``sure``."""
    if lines.pieces is None or not lines.pieces.unfinished.any():
        return Progress(sure, emitted)
    offsets = lines.offsets[streams.order]
    carried = streams.waiting & lines.pieces.unfinished[streams.order]
    carried[:-1] |= lines.pieces.continues[streams.order][1:] & (offsets[1:] >= sure)
    offset = int(np.min(offsets[carried], initial=sure))
    return Progress(offset, emitted, sure if offset < sure else 0)


class _Ordered:
    """Lines in stream order, with these columns. ``waiting``: its group may get more lines.
    ``undecided``: later lines decide whether its group ends there, or at the line ``doubts``.
    ``led``: undecided because of the machine. ``places``: offset of its message's first line,
    unless the message is cut. ``messages``: number of earlier messages; the last entry counts all.
    """

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
        """Set the starts found by ``machine``; mark ends of streams that later lines may change."""
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
    """For each of ``rows``: whether a row from the previous one (exclusive) to it has the flag."""
    before = np.concatenate(([0], np.cumsum(flags)))
    flagged: Flags = before[rows + 1] > before[np.append(0, rows[:-1] + 1)[: len(rows)]]
    return flagged


def _outside(offset: int, emitted: int, offsets: Numbers, bounds: _Bounds, waiting: Flags) -> int:
    """Return ``offset``, or the first line of the group around it if that group was cut by size and
    its lines after the cut extend beyond ``emitted``."""
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
    """Return the groups that begin at ``begins``, cut by size, without emitted headless lines."""
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
    """Return the groups of lines ``[begin, end)``, which follow a cut: begin, end, and whether the
    first line starts an event. Without a ``machine`` this is a single group without a start."""
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
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before, counts) + np.arange(int(counts.sum()))
