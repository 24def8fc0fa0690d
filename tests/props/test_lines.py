"""Lines become events once, for any cuts of batches and any sequence of owners."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flumeng.agent.collector.lines.groups import MAX_BYTES, MAX_LINES, Groups, Limits, Lines, group
from flumeng.connectors.api.ranged import Progress

TIMEOUT_US = 10
Event = tuple[int, ...]
"""The offsets of its lines."""


@dataclass(frozen=True)
class Line:
    stream: int
    starts: bool
    time: int
    size: int


@dataclass
class Model:
    """The events of lines that are read once, one by one."""

    limits: Limits
    headed: set[Event] = field(default_factory=set)
    loose: list[int] = field(default_factory=list)
    _open: dict[int, list[int]] = field(default_factory=dict)
    _before: dict[int, int] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)

    def take(self, lines: list[Line], begin: int, end: int) -> None:
        """Take the lines of [begin, end); no later line belongs to their events."""
        for number in range(begin, end):
            line = lines[number]
            if line.starts:
                self._close(line.stream)
                self._open[line.stream] = [number]
                self._bytes[line.stream] = line.size
            elif not self._joins(lines, number):
                self._close(line.stream)
                self.loose.append(number)
            else:
                self._open[line.stream].append(number)
                self._bytes[line.stream] += line.size + 1
            self._before[line.stream] = number
        for stream in list(self._open):
            self._close(stream)
        self._before.clear()

    def _joins(self, lines: list[Line], number: int) -> bool:
        line = lines[number]
        if line.stream not in self._open:
            return False
        before = self._before[line.stream]
        newest = max(one.time for one in lines[before + 1 : number + 1])
        return (
            newest - lines[before].time <= self.limits.timeout_us
            and len(self._open[line.stream]) < self.limits.max_lines
            and self._bytes[line.stream] + 1 + line.size <= self.limits.max_bytes
        )

    def _close(self, stream: int) -> None:
        if stream in self._open:
            self.headed.add(tuple(self._open.pop(stream)))


def columns(lines: list[Line], begin: int, end: int) -> Lines:
    chosen = lines[begin:end]
    return Lines(
        np.arange(begin, begin + len(chosen), dtype=np.int64),
        np.array([line.time for line in chosen], np.int64),
        np.array([line.stream for line in chosen], np.int64),
        np.array([line.starts for line in chosen], np.bool_),
        np.array([line.size for line in chosen], np.int64),
    )


def events(found: Groups, begin: int) -> list[Event]:
    rows = (found.rows + begin).tolist()
    ends = np.cumsum(found.counts).tolist()
    starts = [0, *ends][:-1]
    return [tuple(rows[a:b]) for a, b in zip(starts, ends, strict=True)]


def in_steps(
    lines: list[Line], at: Progress, ends: list[int], limits: Limits, *, flush: bool
) -> tuple[list[Event], Progress]:
    """Read a batch in steps; of each step the lines that may be needed again are kept."""
    kept, found = at.offset, list[Event]()
    for number, end in enumerate(ends):
        last = number == len(ends) - 1
        step = group(columns(lines, kept, end), at, end, limits, flush=flush and last)
        found += events(step, kept)
        at = step.progress
        kept = min(at.offset, end)
    return found, at


all_lines = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([True, False, False]),
        st.sampled_from([0, 0, 0, 0, 1, 1, 1, 2, 5, 11, -3, -20]),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=60,
)
all_limits = st.builds(
    Limits, st.just(TIMEOUT_US), st.sampled_from([2, 3, 5, 50]), st.sampled_from([3, 8, 1000])
)


chances = st.randoms(use_true_random=False)


def lines_of(drawn: list[tuple[int, bool, int, int]]) -> list[Line]:
    time = 100
    lines = []
    for stream, starts, later, size in drawn:
        time += later
        lines.append(Line(stream, starts, time, size))
    return lines


@given(all_lines, all_limits, chances)
def test_each_line_is_in_one_event_and_all_that_have_a_start_are_whole(
    drawn: list[tuple[int, bool, int, int]], limits: Limits, chance: Random
) -> None:
    """Batches end anywhere, also before where an earlier one ended; some are lost with their owner
    before they are acked; now and then nothing comes for so long that all is emitted."""
    lines = lines_of(drawn)
    model = Model(limits)
    emitted: list[Event] = []
    at, flushed, there = Progress(0, 0), 0, 0
    while at.emitted < len(lines):
        there = min(len(lines), max(there, at.emitted) + chance.randint(1, 12))
        end = chance.choice([there, chance.randint(at.emitted, there)])
        quiet = end == there and chance.random() > 0.8
        flush = quiet or end == len(lines)
        cut = sorted(chance.randint(at.offset, end) for _ in range(chance.randint(0, 2)))
        found, progress = in_steps(lines, at, [*cut, end], limits, flush=flush)
        assert at.offset <= progress.offset <= progress.emitted <= end
        assert progress.emitted >= at.emitted
        if chance.random() > 0.8:
            continue
        emitted += found
        at = progress
        if flush:
            assert at == Progress(end, end)
            model.take(lines, flushed, end)
            flushed = end
    of_all = [number for event in emitted for number in event]
    assert sorted(of_all) == list(range(len(lines)))
    headed = {event for event in emitted if lines[event[0]].starts}
    assert headed == model.headed
    loose = [event for event in emitted if not lines[event[0]].starts]
    assert sorted(number for event in loose for number in event) == sorted(model.loose)
    for event in emitted:
        assert len({lines[number].stream for number in event}) == 1
        assert len(event) <= limits.max_lines
        size = sum(lines[number].size for number in event) + len(event) - 1
        assert len(event) == 1 or size <= limits.max_bytes


@given(all_lines, all_limits, chances)
def test_events_emitted_by_a_batch_are_emitted_by_a_longer_one_too(
    drawn: list[tuple[int, bool, int, int]], limits: Limits, chance: Random
) -> None:
    """A sink that knows events by their first line replaces them when the batch is repeated."""
    lines = lines_of(drawn)
    at = Progress(0, 0)
    first = chance.randint(0, len(lines))
    at = group(columns(lines, 0, first), at, first, limits, flush=False).progress
    ends = sorted(chance.randint(at.emitted, len(lines)) for _ in range(2))
    short, long = (
        group(columns(lines, at.offset, end), at, end, limits, flush=False) for end in ends
    )
    told = [
        {
            event: reason
            for event, reason in zip(events(of, at.offset), of.reasons.tolist(), strict=True)
            if lines[event[0]].starts
        }
        for of in (short, long)
    ]
    assert told[0].items() <= told[1].items()


@given(all_lines, all_limits)
def test_a_group_that_never_ends_is_closed_by_time_or_size(
    drawn: list[tuple[int, bool, int, int]], limits: Limits
) -> None:
    """All that is as old as the timeout is emitted, as soon as one line is younger."""
    lines = lines_of(drawn)
    newest = max(line.time for line in lines) + TIMEOUT_US + 1
    lines.append(Line(9, True, newest, 0))
    found = group(columns(lines, 0, len(lines)), Progress(0, 0), len(lines), limits, flush=False)
    last = len(lines) - 1
    assert found.progress == Progress(last, last)
    assert sorted(n for event in events(found, 0) for n in event) == list(range(last))
    for event, reason in zip(events(found, 0), found.reasons.tolist(), strict=True):
        if reason == MAX_LINES:
            assert len(event) == limits.max_lines
        if reason == MAX_BYTES:
            following = [
                n for n in range(event[-1] + 1, last) if lines[n].stream == lines[event[0]].stream
            ]
            size = sum(lines[n].size + 1 for n in (*event, following[0])) - 1
            assert size > limits.max_bytes


WIDE = Limits(TIMEOUT_US, 50, 1000)


def test_line_seen_by_a_longer_batch_is_still_known_after_a_shorter_one() -> None:
    """Line 10 belongs to the event of line 0, which is emitted; a batch that ends at line 8 does
    not see it, and must not let it be taken for the beginning of another event later."""
    starts = [n != 10 for n in range(12)]
    lines = [Line(int(n not in (0, 10, 11)), starts[n], 100, 1) for n in range(12)]
    at = group(columns(lines, 0, 12), Progress(0, 0), 12, WIDE, flush=False).progress
    assert at == Progress(0, 9)
    assert group(columns(lines, 0, 9), at, 9, WIDE, flush=False).progress == at


def test_clock_that_is_set_back_ends_no_pause() -> None:
    """A batch that saw line 1 without line 2 has emitted line 0 by itself."""
    lines = [Line(0, True, 100, 1), Line(1, True, 111, 1), Line(0, False, 105, 1)]
    first = group(columns(lines, 0, 2), Progress(0, 0), 2, WIDE, flush=False)
    assert events(first, 0) == [(0,)]
    whole = group(columns(lines, 0, 3), Progress(0, 0), 3, WIDE, flush=True)
    assert events(whole, 0) == [(0,), (1,), (2,)]
