"""State machines of presets: any reader finds the same events, wherever it begins."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flumeng.agent.collector.lines.machine import Machine
from flumeng.agent.collector.lines.rules import Rules
from flumeng.config.multiline import Multiline, Preset
from flumeng.config.stack_traces import OTHER, TRACES


@pytest.mark.parametrize("preset", TRACES)
def test_reader_that_begins_inside_an_event_agrees_from_the_next_start_on(preset: str) -> None:
    """Walks through all pairs of states of a reader that knows the earlier lines, and one that does
    not. Where the first finds a start, so must the second, with the same state behind it."""
    machine = Machine.of(TRACES[preset])
    kinds = range(len(machine.names))
    reachable = {0}
    while found := {machine.table[state][kind] for state in reachable for kind in kinds}:
        if found <= reachable:
            break
        reachable |= found
    left = [(state, 0) for state in reachable]
    seen = set(left)
    while left:
        state, other = left.pop()
        for kind in kinds:
            move, by_other = machine.table[state][kind], machine.table[other][kind]
            if move & 1:
                assert move == by_other, (preset, state, other, machine.names[kind])
            elif (move, by_other) not in seen:
                seen.add((move, by_other))
                left.append((move, by_other))
    assert len(seen) > len(reachable)


@pytest.mark.parametrize("preset", TRACES)
def test_state_after_a_start_line_depends_on_that_line_alone(preset: str) -> None:
    machine = Machine.of(TRACES[preset])
    for kind, name in enumerate(machine.names):
        after = {row[kind] for row in machine.table if row[kind] & 1}
        assert len(after) <= 1, (preset, name)


@pytest.mark.parametrize("preset", TRACES)
def test_lines_that_start_nothing_keep_a_new_reader_in_its_first_state(preset: str) -> None:
    assert {move for move in Machine.of(TRACES[preset]).table[0] if not move & 1} <= {0}


@pytest.mark.parametrize("preset", TRACES)
def test_line_of_undecided_kind_starts_no_event_unless_both_kinds_do(preset: str) -> None:
    """LEAD for OTHER joins more lines and never fewer, so that nothing is emitted too early."""
    machine = Machine.of(TRACES[preset])
    other, lead = len(machine.names) - 2, len(machine.names) - 1
    if machine.leads:
        for row in machine.table:
            assert row[lead] == row[other] or (row[other] & 1 and not row[lead] & 1)


TIMES = ("2026-11-28 05:00:00", "2026-11-28T05:00:00.123Z", "2026/11/28T05:00:00,5+01:00", "05:00")
TAILS = (
    "",
    " [main] INFO a",
    " a.b(c)",
    ":1:in `a'",
    ".x(y)",
    " at a",
    ": Caused by: b",
    "/a.b(c)",
)
OTHERS = (
    "\tat a.b(C.java:1)",
    '  File "a", line 1',
    "\t... 3 more",
    "Caused by: a.BError: c",
    "  Caused by: a",
    "goroutine 1 [running]:",
    "\t/a/main.go:1 +0x1d",
    "main.f(0x1)",
    "panic: a",
    "",
    "   ",
    "\r",
    "\x0b",
    "a.B$C: d",
    "java.lang.Error",
    "thread 'main' panicked at a",
    "+ Exception Group Traceback (most",
    "  + Exception Group Traceback (most recent call last):",
    "a.rb:1:in `b'",
    "stack backtrace:",
    "text",
    "INFO a",
    "--- End of a",
    " ---> b",
    "Traceback (most recent call last):",
)


@pytest.mark.parametrize("preset", TRACES)
def test_line_has_the_kind_of_the_first_matching_pattern(preset: Preset) -> None:
    lines = [*(time + tail for time in TIMES for tail in TAILS), *OTHERS]
    kinds = Rules.of(Multiline(preset=preset)).kinds(pa.array([line.encode() for line in lines]))
    assert kinds is not None
    names = Machine.of(TRACES[preset]).names
    expected = []
    for line in lines:
        found = (
            kind
            for kind, pattern in TRACES[preset].kinds
            if pc.match_substring_regex(pa.array([line.encode()]), pattern=pattern)[0].as_py()
        )
        expected.append(next(found, OTHER))
    assert dict(zip(lines, expected, strict=True)) == {
        line: names[kind] for line, kind in zip(lines, kinds, strict=True)
    }


@pytest.mark.parametrize("preset", TRACES)
def test_run_of_equal_lines_gives_the_states_of_each_line(preset: str) -> None:
    machine = Machine.of(TRACES[preset])
    random = np.random.default_rng(1)
    for _ in range(50):
        kinds = random.integers(0, len(machine.names), 40).repeat(random.integers(1, 5, 40))
        unknown = random.random(len(kinds)) < 0.05
        state, expected = 0, []
        for code in (kinds + (machine.going_on + 1) * unknown).tolist():
            state = machine.table[state][code]
            expected.append(bool(state & 1))
        assert expected == machine.starts(kinds, unknown).tolist()
