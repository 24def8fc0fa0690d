"""Source state that is in no open journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from flumeng.agent.ingest.kept_state import KeptState
from flumeng.agent.ingest.noted_state import NotedState

_GENERATION = "generation"


class SourceStates:
    """Of one worker's flows, in ``directory``. Raises OSError. One thread changes it.

    States are numbered: of several earlier journals of a flow the last one counts.
    """

    def __init__(self, directory: Path) -> None:
        self._kept = KeptState(directory)
        self._notes = directory / "noted"
        self._notes.mkdir(exist_ok=True, mode=0o700)

    def flows(self) -> list[str]:
        """Flows with kept state; touches no disk."""
        return self._kept.flows()

    def noted(self, flow: str) -> NotedState:
        """Raises CorruptError."""
        return NotedState(self._note(flow))

    def keep(self, flow: str, state: Mapping[str, object]) -> None:
        """Unless a later one is kept. Raises CorruptError."""
        if state and _generation(state) >= _generation(self._kept.of(flow)):
            self._kept.keep(flow, state)

    def next(self, flow: str, earlier: Iterable[Mapping[str, object]]) -> dict[str, object]:
        """The state that a new journal begins with. Raises CorruptError."""
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
