"""Runs the state machine of a preset over lines, see ``flumeng.config.stack_traces``. No Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flumeng.config.stack_traces import FRAME, INDENTED, LEAD, LEAD_LINES, OTHER, UNKNOWN, Traces

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Machine:
    """``table[state][kind]``: the state after a line. A state is twice its number, plus one when
    that line has started an event. Kind ``going_on`` continues a message; higher kinds are
    those of lines whose previous line is unknown."""

    names: tuple[str, ...]
    leads: bool
    table: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, traces: Traces) -> Machine:
        names, states = traces.names, list(traces.moves)
        assert states[0] == UNKNOWN

        def move(state: str, kind: str) -> int:
            target = traces.moves[state].get(kind, state)
            return 2 * states.index(target.removeprefix("+")) + target.startswith("+")

        moves = [[move(state, kind) for kind in names] for state in states]
        rows = [
            (*row, 2 * number, *moves[0], 0) for number, row in enumerate(moves) for _ in range(2)
        ]
        return cls(names, traces.leads, tuple(rows))

    @property
    def going_on(self) -> int:
        return len(self.names)

    def starts(self, kinds: Numbers, unknown: Flags) -> Flags:
        """Return which lines start an event. The line before an ``unknown`` line is not known."""
        codes = kinds + (self.going_on + 1) * unknown
        moves, steady = self._moves
        steps = np.ones(len(codes), np.bool_)
        steps[1:] = (codes[1:] != codes[:-1]) | ~steady[codes[1:]]
        table, state = self.table, 0
        states = np.array([state := table[state][code] for code in codes[steps].tolist()], np.int64)
        states = states[np.cumsum(steps) - 1]
        states[~steps] = moves[states[~steps], codes[~steps]]
        starts: Flags = (states & 1).astype(np.bool_)
        return starts

    @cached_property
    def _moves(self) -> tuple[NDArray[np.int64], Flags]:
        """The table, and the codes whose runs keep one state from their second line on."""
        moves = np.array(self.table, np.int64)
        again = np.take_along_axis(moves, moves, axis=0)
        return moves, (again >> 1 == moves >> 1).all(axis=0)

    def with_leads(
        self, kinds: Numbers, unknown: Flags, open_ends: Flags
    ) -> tuple[Numbers, Flags, Numbers]:
        """Replace OTHER by LEAD for lines that lead to stack frames. Return the kinds, the
        undecided ends of streams, and the first undecided line of each. ``open_ends``: last lines
        of streams that may continue."""
        undecided = np.zeros(len(kinds), np.bool_)
        doubts = np.arange(len(kinds))
        if not self.leads or not len(kinds):
            return kinds, undecided, doubts
        number = {name: code for code, name in enumerate(self.names)}
        others = np.flatnonzero(kinds == number[OTHER])
        last = np.append(unknown[1:], True)
        decides = (kinds != number[OTHER]) & (kinds != number[INDENTED])
        rows = np.arange(len(kinds))
        stops = np.where(decides | last, rows, len(kinds))
        stops = np.minimum.accumulate(stops[::-1])[::-1][others]
        near = stops - others <= LEAD_LINES
        open_end = ~decides[stops] & open_ends[stops] & near
        undecided[stops[open_end]] = True
        np.minimum.at(doubts, stops[open_end], others[open_end])
        leads = others[(near & (kinds[stops] == number[FRAME])) | open_end]
        kinds = kinds.copy()
        kinds[leads] = number[LEAD]
        return kinds, undecided, doubts
