"""Source state that lies beside a flow's journal: what was seen, and is not journaled yet.

A journal that is full takes no state either, and what a source has seen meanwhile must survive its
worker all the same. What the journal knows by now is dropped at the next change.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Container, Mapping
from pathlib import Path

from flumeng.platform.whole_files import read_object, write_durably


class NotedState:
    """One small JSON file. Raises OSError, and CorruptError when it is damaged: then nobody knows
    what was seen. For any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._state = read_object(file)

    @property
    def state(self) -> Mapping[str, object]:
        with self._lock:
            return dict(self._state)

    def note(self, changes: Mapping[str, object], journaled: Container[str]) -> None:
        """Durable when this returns. A key with None is dropped, as is what is ``journaled``, which
        must be durable itself."""
        with self._lock:
            state = {k: v for k, v in {**self._state, **changes}.items() if v is not None}
            state = {key: value for key, value in state.items() if key not in journaled}
            if state != self._state:
                write_durably(self._file, json.dumps(state))
                self._state = state
