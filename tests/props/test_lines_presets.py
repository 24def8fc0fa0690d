"""Lines of presets become the same events wherever batches are cut, and after each ack."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.agent.collector.lines.groups import Groups, Limits, Lines, group
from flumeng.agent.collector.lines.machine import Machine
from flumeng.config.stack_traces import TRACES
from flumeng.connectors.api.ranged import Progress

TIMEOUT_US = 10
MACHINES = {name: Machine.of(traces) for name, traces in TRACES.items()}
Event = tuple[int, ...]


@dataclass(frozen=True)
class Line:
    stream: int
    kind: int
    time: int
    size: int


def columns(lines: list[Line], begin: int, end: int) -> Lines:
    chosen = lines[begin:end]
    return Lines(
        np.arange(begin, begin + len(chosen), dtype=np.int64),
        np.array([line.time for line in chosen], np.int64),
        np.array([line.stream for line in chosen], np.int64),
        np.zeros(len(chosen), np.bool_),
        np.array([line.size for line in chosen], np.int64),
        np.array([line.kind for line in chosen], np.int64),
    )


def events(found: Groups, begin: int) -> list[Event]:
    rows = (found.rows + begin).tolist()
    ends = np.cumsum(found.counts).tolist()
    return [tuple(rows[a:b]) for a, b in zip([0, *ends][:-1], ends, strict=True)]


def headed(lines: list[Line], begin: int, end: int, limits: Limits, machine: Machine) -> set[Event]:
    """The events that begin with a start, from lines that are read at once, one by one."""
    found: set[Event] = set()
    for stream in {line.stream for line in lines[begin:end]}:
        rows = [number for number in range(begin, end) if lines[number].stream == stream]
        unknown = [True] * len(rows)
        for place in range(1, len(rows)):
            newest = max(one.time for one in lines[rows[place - 1] + 1 : rows[place] + 1])
            unknown[place] = newest - lines[rows[place - 1]].time > TIMEOUT_US
        kinds, _, _ = machine.with_leads(
            np.array([lines[number].kind for number in rows], np.int64),
            np.array(unknown),
            np.zeros(len(rows), np.bool_),
        )
        state, size = 0, 0
        event: list[int] = []
        is_headed = False
        for place, number in enumerate(rows):
            kind, weight = int(kinds[place]), lines[number].size
            full = is_headed and (
                len(event) == limits.max_lines or size + 1 + weight > limits.max_bytes
            )
            move = machine.table[0 if unknown[place] else state][kind]
            cut = full and not unknown[place] and not move & 1
            if cut:
                move = machine.table[0][kind]
            if unknown[place] or cut or move & 1:
                if is_headed:
                    found.add(tuple(event))
                event, size, is_headed = [number], weight, bool(move & 1)
            else:
                event.append(number)
                size += 1 + weight
            state = move
        if is_headed:
            found.add(tuple(event))
    return found


drawn_lines = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 99),
        st.sampled_from([0, 0, 0, 0, 0, 0, 1, 1, 2, 11, -3]),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=60,
)
all_limits = st.builds(
    Limits, st.just(TIMEOUT_US), st.sampled_from([2, 3, 5, 50]), st.sampled_from([3, 8, 1000])
)
chances = st.randoms(use_true_random=False)


def lines_of(drawn: list[tuple[int, int, int, int]], machine: Machine) -> list[Line]:
    """Most lines continue the event of their stream, as those of traces do."""
    time, lines, states = 100, list[Line](), dict[int, int]()
    lead = len(machine.names) - 1  # LEAD is found and does not come
    for stream, number, later, size in drawn:
        time += later
        moves = machine.table[states.get(stream, 0)]
        kinds = list(range(lead))
        if number % 4:
            going = [kind for kind in kinds if not moves[kind] & 1]
            if not moves[lead] & 1:
                going += [lead - 1] * 2
            kinds = going or kinds
        kind = kinds[number // 4 % len(kinds)]
        states[stream] = moves[kind] if kind != lead - 1 else moves[lead]
        lines.append(Line(stream, kind, time, size))
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("preset", TRACES)
@given(drawn_lines, all_limits, chances)
def test_input_that_is_cut_and_replayed_at_each_ack_gives_the_same_events(
    preset: str, drawn: list[tuple[int, int, int, int]], limits: Limits, chance: Random
) -> None:
    """Batches end anywhere, some are lost before they are acked, and each begins at the ack."""
    machine = MACHINES[preset]
    lines = lines_of(drawn, machine)
    emitted: list[Event] = []
    expected: set[Event] = set()
    at, flushed, there = Progress(0, 0), 0, 0
    while at.emitted < len(lines):
        there = min(len(lines), max(there, at.emitted) + chance.randint(1, 12))
        end = chance.choice([there, chance.randint(at.emitted, there)])
        flush = end == len(lines) or (end == there and chance.random() > 0.8)
        found, progress, kept = list[Event](), at, at.offset
        for step in sorted([*(chance.randint(at.offset, end) for _ in range(2)), end]):
            taken = columns(lines, kept, step)
            done = group(
                taken, progress, step, limits, flush=flush and step == end, machine=machine
            )
            found += events(done, kept)
            assert at.offset <= done.progress.offset <= done.progress.emitted
            progress = done.progress
            kept = min(progress.offset, step)
        if chance.random() > 0.8:
            continue
        emitted += found
        at = progress
        if flush:
            assert at == Progress(end, end)
            expected |= headed(lines, flushed, end, limits, machine)
            flushed = end
    assert sorted(number for event in emitted for number in event) == list(range(len(lines)))
    assert expected <= set(emitted)


@pytest.mark.parametrize("preset", TRACES)
@given(drawn_lines, all_limits, chances)
def test_longer_batch_emits_the_events_of_a_shorter_one_from_the_same_ack(
    preset: str, drawn: list[tuple[int, int, int, int]], limits: Limits, chance: Random
) -> None:
    machine = MACHINES[preset]
    lines = lines_of(drawn, machine)
    first = chance.randint(0, len(lines))
    at = group(
        columns(lines, 0, first), Progress(0, 0), first, limits, flush=False, machine=machine
    ).progress
    ends = sorted(chance.randint(at.emitted, len(lines)) for _ in range(2))
    short, long = (
        set(
            events(
                group(
                    columns(lines, at.offset, end), at, end, limits, flush=False, machine=machine
                ),
                at.offset,
            )
        )
        for end in ends
    )
    whole = headed(lines, 0, len(lines), limits, machine)
    assert short & whole <= long


def named(machine: Machine, *kinds: str) -> list[Line]:
    """Lines of one stream, all received at once."""
    return [Line(0, machine.names.index(kind), 100, 0) for kind in kinds]


def test_first_piece_of_a_cut_event_does_not_depend_on_later_lines() -> None:
    """Whether the last line belongs to the event too is not known yet."""
    machine, at = MACHINES["dotnet"], Progress(0, 0)
    lines = named(machine, "log", "frame", "cause", "other")
    limits = Limits(TIMEOUT_US, 2, 1000)
    for end in (3, 4):
        done = group(columns(lines, 0, end), at, end, limits, flush=False, machine=machine)
        assert events(done, 0)[0] == (0, 1)


def test_line_without_an_emitted_event_in_a_longer_batch_stays_pending() -> None:
    """The longer batch has seen that the line starts an event; a shorter one does not know it."""
    machine = MACHINES["java"]
    lines = named(machine, "log", "other", "cause")
    limits = Limits(TIMEOUT_US, 50, 1000)
    longer = group(columns(lines, 0, 3), Progress(0, 0), 3, limits, flush=False, machine=machine)
    assert (events(longer, 0), longer.progress) == ([(0,)], Progress(1, 1))
    shorter = group(columns(lines, 0, 2), Progress(0, 1), 2, limits, flush=False, machine=machine)
    assert (events(shorter, 0), shorter.progress.emitted) == ([], 1)
