"""Source state that has outlived its journals: where a flow's tail sources are to go on.

While a flow has a journal on this node, its source state lies there. When the last journal is
drained and removed (the flow was stopped, or the node drained), the state is kept here, so that a
flow that is resumed reads nothing again. It is forgotten when the flow itself is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from flumeng.platform.whole_files import read_object, write_durably


class KeptState:
    """One JSON file a flow in ``directory``. Raises OSError. Any thread may ask for ``flows``, also
    while another changes something; only one at a time may do that."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for made in (directory.parent, directory):  # perhaps by somebody else
            made.chmod(0o700)
        self._flows = frozenset(file.stem for file in directory.glob("*.json"))

    def flows(self) -> list[str]:
        return sorted(self._flows)

    def of(self, flow: str) -> Mapping[str, object]:
        """Empty when nothing is kept. Raises CorruptError: to begin anew would read all again."""
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
