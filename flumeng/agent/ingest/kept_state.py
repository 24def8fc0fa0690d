"""Source state of flows without a journal here.

When a flow's last journal is drained and removed, its source state is kept, so that a resumed flow
reads nothing again. It goes with the flow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from flumeng.platform.whole_files import read_object, write_durably


class KeptState:
    """One JSON file a flow. Raises OSError. ``flows`` is thread-safe; one thread changes it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for made in (directory.parent, directory):  # perhaps by somebody else
            made.chmod(0o700)
        self._flows = frozenset(file.stem for file in directory.glob("*.json"))

    def flows(self) -> list[str]:
        return sorted(self._flows)

    def of(self, flow: str) -> Mapping[str, object]:
        """Empty when nothing is kept. Raises CorruptError."""
        return read_object(self._file(flow)) if flow in self._flows else {}

    def keep(self, flow: str, state: Mapping[str, object]) -> None:
        """Durable when this returns."""
        write_durably(self._file(flow), json.dumps(dict(state)))
        self._flows |= {flow}

    def forget(self, flow: str) -> None:
        self._file(flow).unlink(missing_ok=True)
        self._flows -= {flow}

    def _file(self, flow: str) -> Path:
        return self._directory / f"{flow}.json"
