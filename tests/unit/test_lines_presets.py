"""State machines of presets: any reader finds the same events, wherever it begins."""

from __future__ import annotations

import pytest

from flumeng.inputs.lines.machine import Machine
from flumeng.spec.traces import TRACES


@pytest.mark.parametrize("preset", TRACES)
def test_a_reader_that_begins_inside_an_event_agrees_from_the_next_start_on(preset: str) -> None:
    """Walks through all pairs of states of one that knows what was before, and one that does
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
def test_the_state_after_a_start_depends_on_its_line_alone(preset: str) -> None:
    machine = Machine.of(TRACES[preset])
    for kind, name in enumerate(machine.names):
        after = {row[kind] for row in machine.table if row[kind] & 1}
        assert len(after) <= 1, (preset, name)


@pytest.mark.parametrize("preset", TRACES)
def test_lines_that_start_nothing_leave_a_new_reader_where_it_began(preset: str) -> None:
    assert {move for move in Machine.of(TRACES[preset]).table[0] if not move & 1} <= {0}


@pytest.mark.parametrize("preset", TRACES)
def test_a_line_whose_kind_is_undecided_starts_an_event_when_the_other_kind_does(
    preset: str,
) -> None:
    """LEAD for OTHER joins more lines and never fewer, so that nothing is emitted too early."""
    machine = Machine.of(TRACES[preset])
    other, lead = len(machine.names) - 2, len(machine.names) - 1
    if machine.leads:
        for row in machine.table:
            assert row[lead] == row[other] or (row[other] & 1 and not row[lead] & 1)
