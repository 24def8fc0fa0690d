"""Source state beside a flow's journal: seen, and not journaled yet.

A full journal takes no state, which must still survive the worker. What the journal has by now is
dropped at the next change.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Container, Mapping
from pathlib import Path

from flumeng.platform.whole_files import read_object, write_durably


class NotedState:
    """One small JSON file. Raises OSError, and CorruptError when it is damaged. Thread-safe."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._state = read_object(file)

    @property
    def state(self) -> Mapping[str, object]:
        with self._lock:
            return dict(self._state)

    def note(self, changes: Mapping[str, object], journaled: Container[str]) -> None:
        """Durable when this returns. Drops keys with None, and those ``journaled``, which must be
        durable."""
        with self._lock:
            state = {k: v for k, v in {**self._state, **changes}.items() if v is not None}
            state = {key: value for key, value in state.items() if key not in journaled}
            if state != self._state:
                write_durably(self._file, json.dumps(state))
                self._state = state
