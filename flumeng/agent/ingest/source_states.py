"""Source state outside open journals: of removed journals, or not journaled yet."""

from __future__ import annotations

import json
import threading
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from flumeng.platform.durable_files import read_object, write_durably

_GENERATION = "generation"


class NotedState:
    """A flow's source state outside its journal, which accepts none while it is full, in a small
    JSON file. Raises OSError, and CorruptError when the file is damaged. Thread-safe."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._state = read_object(file)

    @property
    def state(self) -> Mapping[str, object]:
        with self._lock:
            return dict(self._state)

    def note(self, changes: Mapping[str, object], journaled: Container[str]) -> None:
        """Write changes durably. Drops keys whose value is None, and those in ``journaled``."""
        with self._lock:
            state = {k: v for k, v in {**self._state, **changes}.items() if v is not None}
            state = {key: value for key, value in state.items() if key not in journaled}
            if state != self._state:
                write_durably(self._file, json.dumps(state))
                self._state = state


class SourceStates:
    """Keeps each flow's last source state as JSON, so that a resumed flow rereads nothing. Of a
    flow's journals the last counts. ``flows`` is thread-safe; one thread writes. Raises OSError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._notes = directory / "noted"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for made in (directory.parent, directory):  # another program may have made them
            made.chmod(0o700)
        self._notes.mkdir(exist_ok=True, mode=0o700)
        self._flows = frozenset(file.stem for file in directory.glob("*.json"))

    def flows(self) -> list[str]:
        """Return the flows with kept state, without disk access."""
        return sorted(self._flows)

    def noted(self, flow: str) -> NotedState:
        """Return a flow's state outside its journal. Raises CorruptError for a damaged file."""
        return NotedState(self._notes / f"{flow}.json")

    def keep(self, flow: str, state: Mapping[str, object]) -> None:
        """Keep the state unless a later one is kept. Raises CorruptError if that is damaged."""
        if state and _generation(state) >= _generation(self._of(flow)):
            write_durably(self._file(flow), json.dumps(dict(state)))
            self._flows |= {flow}

    def next(self, flow: str, earlier: Iterable[Mapping[str, object]]) -> dict[str, object]:
        """Return the last of kept and ``earlier`` states, for a new journal. Raises as ``keep``."""
        last = max([*earlier, self._of(flow)], key=_generation)
        return {**last, _GENERATION: _generation(last) + 1} if last else {}

    def forget(self, flow: str) -> None:
        self._file(flow).unlink(missing_ok=True)
        self._flows -= {flow}
        (self._notes / f"{flow}.json").unlink(missing_ok=True)

    def _of(self, flow: str) -> Mapping[str, object]:
        """Return the kept state. Raises CorruptError if damaged; else sources would reread all."""
        return read_object(self._file(flow)) if flow in self._flows else {}

    def _file(self, flow: str) -> Path:
        return self._directory / f"{flow}.json"


def _generation(state: Mapping[str, object]) -> int:
    generation = state.get(_GENERATION, 0)
    assert isinstance(generation, int)
    return generation
