"""Messages that a container runtime has cut into lines are whole, wherever batches are cut."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.agent.collector.lines.reader import Joining
from flumeng.agent.collector.lines.rules import Rules
from flumeng.config.multiline import KEY, PIECE_SECONDS
from flumeng.config.stack_traces import TRACES
from flumeng.connectors.api.ranged import Progress
from tests.unit.agent.test_lines_joining import batch

SECOND = 10**6
TIMEOUT_US = 10 * SECOND
JAVA = (
    *["2026-11-28 05:00:00 ERROR a", "\tat a.B(C.java:1)", "java.lang.Error: ", "Caused by: x"],
    *['Exception in thread "a" ', "words", " ", ""],
)
"""Beginnings of lines; some have no meaning in the middle of a message."""
CONTINUES = ("a", " x", "x", " a")
"""A message with an ``x`` continues the event before it."""
Event = tuple[int, ...]


@dataclass(frozen=True)
class Line:
    file: int
    stream: str
    partial: bool
    text: str
    time: int

    @property
    def body(self) -> bytes:
        tag = "P" if self.partial else "F"
        return f"2026-11-28T09:00:00.123Z {self.stream} {tag} {self.text}".encode()


def lines_of(drawn: list[tuple[int, bool, bool, int, int]], texts: tuple[str, ...]) -> list[Line]:
    time, lines = 100, list[Line]()
    for file, err, partial, number, later in drawn:
        time += later
        text = f"{texts[number % len(texts)]}<{len(lines)}>"
        lines.append(Line(file, "stderr" if err else "stdout", partial, text, time))
    return lines


drawn_lines = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.booleans(),
        st.booleans(),
        st.integers(0, 40),
        st.sampled_from([0] * 8 + [SECOND, 11 * SECOND, 61 * SECOND, -3 * SECOND]),
    ),
    min_size=1,
    max_size=40,
)
sizes = st.sampled_from([(2, 10**6), (50, 10**6), (50, 30), (3, 60)])
chances = st.randoms(use_true_random=False)


def rules(kind: str, limits: tuple[int, int]) -> Rules:
    traces = TRACES["java"] if kind == "java" else None
    pattern = "x" if kind == "pattern" else ""
    return Rules(
        pattern, kind == "pattern", KEY, TIMEOUT_US, *limits, traces, "cri", kind == "alone"
    )


def rows_of(lines: list[Line], begin: int, end: int) -> pa.RecordBatch:
    chosen = lines[begin:end]
    return batch(
        [line.body for line in chosen],
        [{"path": str(line.file)} for line in chosen],
        [line.time for line in chosen],
        begin,
    )


@dataclass
class Message:
    rows: list[int]
    unknown: bool
    """The line before it in its stream is missing, or there was a pause."""


def messages(lines: list[Line], begin: int, end: int) -> list[list[Message]]:
    """Of each stream, one line after the other."""
    found = []
    for stream in {(line.file, line.stream) for line in lines[begin:end]}:
        rows = [n for n in range(begin, end) if (lines[n].file, lines[n].stream) == stream]
        of_stream: list[Message] = []
        for place, row in enumerate(rows):
            before = lines[rows[place - 1]] if place else None
            pause = before is None
            if before is not None:
                newest = max(line.time for line in lines[rows[place - 1] + 1 : row + 1])
                patience = PIECE_SECONDS * SECOND if before.partial else TIMEOUT_US
                pause = newest - before.time > patience
            if before is not None and before.partial and not pause:
                of_stream[-1].rows.append(row)
            else:
                of_stream.append(Message([row], pause))
        found.append(of_stream)
    return found


def size_of(lines: list[Line], rows: list[int]) -> int:
    return sum(len(lines[row].text) + 1 for row in rows) - 1


@dataclass
class Reader:
    """The events of one stream that begin with a start, message by message."""

    lines: list[Line]
    how: Rules
    found: set[Event]
    event: list[int] = field(default_factory=list)
    count: int = 0
    is_headed: bool = False
    state: int = 0

    def move(self, message: Message, text: bytes, kind: int) -> tuple[bool, int]:
        """Whether the message is a start, and the state behind it."""
        machine = self.how.machine
        if machine is None:
            return bool(self.how.starts(pa.array([text]))[0]), 0
        state = machine.table[0 if message.unknown else self.state][kind]
        return bool(state & 1), state

    def take(self, message: Message, text: bytes, kind: int) -> None:
        is_start, state = self.move(message, text, kind)
        goes_on = self.is_headed and not is_start and not message.unknown
        size = size_of(self.lines, [*self.event, *message.rows])
        if goes_on and self.count < self.how.max_lines and size <= self.how.max_bytes:
            self.event += message.rows
            self.count, self.state = self.count + 1, state
            return
        self.close()
        if goes_on:
            is_start, state = self.move(replace(message, unknown=True), text, kind)
        rows = list(message.rows)
        while size_of(self.lines, rows) > self.how.max_bytes and len(rows) > 1:
            rows.pop()
        self.event, self.count, self.is_headed, self.state = rows, 1, is_start, state
        if len(rows) < len(message.rows):
            self.close()
            self.state = 0

    def close(self) -> None:
        if self.is_headed:
            self.found.add(tuple(self.event))
        self.is_headed = False


def headed(lines: list[Line], begin: int, end: int, how: Rules) -> set[Event]:
    """The events that begin with a start, from lines that are read at once, one by one."""
    found: set[Event] = set()
    for of_stream in messages(lines, begin, end):
        texts = ["".join(lines[n].text for n in one.rows).encode() for one in of_stream]
        kinds = how.kinds(pa.array(texts, pa.binary()))
        if how.machine is not None and kinds is not None:
            unknown = np.array([one.unknown for one in of_stream])
            kinds, _, _ = how.machine.with_leads(kinds, unknown, np.zeros(len(unknown), np.bool_))
        reader = Reader(lines, how, found)
        for place, one in enumerate(of_stream):
            reader.take(one, texts[place], 0 if kinds is None else int(kinds[place]))
        reader.close()
    return found


def run(
    lines: list[Line], at: Progress, ends: list[int], how: Rules, *, flush: bool
) -> tuple[list[Event], Progress]:
    """Read a batch in steps."""
    joining, found, begin = Joining(how, at), list[Event](), at.offset
    for number, end in enumerate(ends):
        joining.add(rows_of(lines, begin, end))
        last = number == len(ends) - 1
        for events in joining.step(end, flush=flush and last):
            found += [
                tuple(int(n) for n in re.findall(rb"<(\d+)>", body))
                for body in events["body"].to_pylist()
            ]
        begin = end
    return found, joining.progress


def check_whole(lines: list[Line], events: list[Event], begin: int, end: int, how: Rules) -> None:
    """A message that is not too large is in one event, with all its pieces in order."""
    of_row = {row: event for event in events for row in event}
    for of_stream in messages(lines, begin, end):
        for one in of_stream:
            if size_of(lines, one.rows) <= how.max_bytes:
                event = of_row[one.rows[0]]
                place = event.index(one.rows[0])
                assert event[place : place + len(one.rows)] == tuple(one.rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "pattern", "java"])
@given(drawn_lines, sizes, chances)
def test_lines_that_are_cut_and_replayed_at_each_ack_give_the_same_events(
    kind: str,
    drawn: list[tuple[int, bool, bool, int, int]],
    limits: tuple[int, int],
    chance: Random,
) -> None:
    """Batches end anywhere, also inside a message; some are lost before they are acked."""
    how = rules(kind, limits)
    lines = lines_of(drawn, JAVA if kind == "java" else CONTINUES)
    emitted: list[Event] = []
    expected: set[Event] = set()
    at, flushed, there = Progress(0, 0), 0, 0
    while at.emitted < len(lines):
        there = min(len(lines), max(there, at.emitted) + chance.randint(1, 8))
        end = chance.choice([there, chance.randint(at.emitted, there)])
        flush = end == len(lines) or (end == there and chance.random() > 0.8)
        cut = sorted(chance.randint(at.offset, end) for _ in range(chance.randint(0, 2)))
        found, progress = run(lines, at, [*cut, end], how, flush=flush)
        assert at.offset <= progress.offset <= progress.emitted <= end
        assert progress.emitted >= at.emitted
        if chance.random() > 0.8:
            continue
        emitted += found
        at = progress
        if flush:
            assert at == Progress(end, end)
            expected |= headed(lines, flushed, end, how)
            check_whole(lines, emitted, flushed, end, how)
            flushed = end
    assert sorted(row for event in emitted for row in event) == list(range(len(lines)))
    assert expected <= set(emitted)
    for event in emitted:
        assert len({(lines[row].file, lines[row].stream) for row in event}) == 1
        assert len(event) == 1 or size_of(lines, list(event)) <= how.max_bytes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "pattern", "java"])
@given(drawn_lines, sizes, chances)
def test_longer_batch_emits_the_events_of_a_shorter_one(
    kind: str,
    drawn: list[tuple[int, bool, bool, int, int]],
    limits: tuple[int, int],
    chance: Random,
) -> None:
    how = rules(kind, limits)
    lines = lines_of(drawn, JAVA if kind == "java" else CONTINUES)
    first = chance.randint(0, len(lines))
    _, at = run(lines, Progress(0, 0), [first], how, flush=False)
    ends = sorted(chance.randint(at.emitted, len(lines)) for _ in range(2))
    short, long = (set(run(lines, at, [end], how, flush=False)[0]) for end in ends)
    assert short & headed(lines, 0, len(lines), how) <= long


@pytest.mark.slow
def test_messages_that_overlap_for_ever_do_not_hold_the_ack() -> None:
    """Each of four streams is in the middle of a message whenever another one ends."""
    lines = [
        Line(n % 2, ("stdout", "stderr")[n // 2 % 2], n // 4 % 2 == n % 2, f"<{n}>", 100)
        for n in range(200)
    ]
    at = Progress(0, 0)
    for end in range(1, len(lines) + 1):
        _, at = run(lines, at, [end], rules("alone", (50, 10**6)), flush=False)
        assert at.offset >= end - 12, at


def test_rest_of_a_message_is_no_message_for_an_owner_that_continues_inside_it() -> None:
    """The message of rows 0, 1 and 3 goes on with an event whose begin is below the ack; row 3
    alone would begin one. Its row 1 is read again only because its record says so."""
    drawn = [
        *[(0, "stdout", True, " x"), (0, "stdout", True, "a"), (0, "stderr", False, "a")],
        *[(0, "stdout", False, "a"), (1, "stdout", False, "a"), (0, "stderr", False, " x")],
        *[(0, "stdout", False, " x"), (0, "stderr", False, "a"), (0, "stdout", False, "a")],
    ]
    lines = [
        Line(file, stream, partial, f"{text}<{n}>", 100)
        for n, (file, stream, partial, text) in enumerate(drawn)
    ]
    how = rules("pattern", (50, 10**6))
    found, at = run(lines, Progress(0, 0), [9], how, flush=False)
    assert at == Progress(1, 4, 2)
    assert found == [(0, 1, 3), (2, 5)]
    rest, _ = run(lines, at, [9], how, flush=True)
    assert rest == [(4,), (6,), (7,), (8,)]


def test_a_shorter_batch_does_not_forget_a_message_that_is_emitted() -> None:
    """Row 2 ends the message of row 0, and lies above row 1, whose event is not emitted."""
    drawn = [("stdout", True, " x"), ("stderr", True, "a"), ("stdout", False, "a")]
    lines = [
        Line(0, stream, partial, f"{text}<{n}>", 100)
        for n, (stream, partial, text) in enumerate([*drawn, ("stdout", False, "a")])
    ]
    how = rules("pattern", (50, 10**6))
    found, at = run(lines, Progress(0, 0), [4], how, flush=False)
    assert (found, at) == ([(0, 2)], Progress(0, 1))
    rest, at = run(lines, at, [1, 2, 3], how, flush=False)
    assert (rest, at) == ([], Progress(0, 1))
    assert run(lines, at, [4], how, flush=True)[0] == [(1,), (3,)]


def test_step_that_ends_before_the_settled_rows_forgets_nothing() -> None:
    """Rows 0 and 2 are emitted, and so is row 1 with row 7; the next owner reads row 0 only because
    it refers to row 2."""
    drawn = [("stdout", True), ("stderr", True), *[("stdout", False)] * 5, *[("stderr", False)] * 2]
    lines = [
        Line(0, stream, partial, f"{JAVA[0]}<{n}>", 100)
        for n, (stream, partial) in enumerate(drawn)
    ]
    how = rules("java", (50, 10**6))
    found, at = run(lines, Progress(0, 0), [9], how, flush=False)
    assert (sorted(found), at) == ([(0, 2), (1, 7), (3,), (4,), (5,)], Progress(0, 6, 1))
    assert run(lines, at, [1, 9], how, flush=True)[0] == [(6,), (8,)]
