"""Where a flow's sources go on that is in no open journal: kept when its last journal went, or seen
and not journaled yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from flumeng.agent.ingest.kept_state import KeptState
from flumeng.agent.ingest.noted_state import NotedState

_GENERATION = "generation"


class SourceStates:
    """Of one worker's flows, in ``directory``. Raises OSError. One at a time may change something.

    A state has a number, since of several earlier journals of a flow the last one knows best.
    """

    def __init__(self, directory: Path) -> None:
        self._kept = KeptState(directory)
        self._notes = directory / "noted"
        self._notes.mkdir(exist_ok=True, mode=0o700)

    def flows(self) -> list[str]:
        """Of which something is kept; waits for no disk."""
        return self._kept.flows()

    def noted(self, flow: str) -> NotedState:
        """Raises CorruptError."""
        return NotedState(self._note(flow))

    def keep(self, flow: str, state: Mapping[str, object]) -> None:
        """Unless a later one is kept. Raises CorruptError."""
        if state and _generation(state) >= _generation(self._kept.of(flow)):
            self._kept.keep(flow, state)

    def next(self, flow: str, earlier: Iterable[Mapping[str, object]]) -> dict[str, object]:
        """What a new journal begins with: the last state of all. Raises CorruptError."""
        last = max([*earlier, self._kept.of(flow)], key=_generation)
        return {**last, _GENERATION: _generation(last) + 1} if last else {}

    def forget(self, flow: str) -> None:
        self._kept.forget(flow)
        self._note(flow).unlink(missing_ok=True)

    def _note(self, flow: str) -> Path:
        return self._notes / f"{flow}.json"


def _generation(state: Mapping[str, object]) -> int:
    generation = state.get(_GENERATION, 0)
    assert isinstance(generation, int)
    return generation
