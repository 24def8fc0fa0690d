"""What became of each file of ``flumeng flow apply``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flumeng.config.flow_files import FlowFilesError
from flumeng.control.commands.next_revision import Applied, RefusedError
from flumeng.control.queries.target_checks import TargetsFailedError
from flumeng.platform.errors import FlumengError

NOT_TRIED = "not applied, because of another file"


class ApplyOutcome:
    """``flows`` is known once all files are read; ``add`` is told what was applied."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.flows: Mapping[Path, str] = {}
        self._files = files
        self._applied: dict[str, Applied] = {}

    def add(self, applied: Iterable[Applied]) -> None:
        self._applied.update((one.flow, one) for one in applied)

    @property
    def sentence(self) -> str:
        count = len(self._applied.keys() & set(self.flows.values()))
        return f"{count} of {len(self._files)} files are applied, {len(self._files) - count} not"

    def rows(self, error: FlumengError | None = None) -> list[dict[str, Any]]:
        """One for each file, in order; ``error`` is what ended the command."""
        return [self._row(path, error) for path in self._files]

    def _row(self, path: Path, error: FlumengError | None) -> dict[str, Any]:
        flow = self.flows.get(path)
        applied = self._applied.get(flow or "")
        return {
            "file": str(path),
            "flow": flow,
            "revision": applied.revision if applied else None,
            "changed": bool(applied and applied.changed),
            "error": None if applied or error is None else _why(error, path, flow),
        }


def _why(error: FlumengError, path: Path, flow: str | None) -> str:
    if isinstance(error, FlowFilesError):
        own = [problem for file, problem in error.problems if file == path]
        return (
            "; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in own) or NOT_TRIED
        )
    if isinstance(error, RefusedError | TargetsFailedError):
        return error.refused.get(flow or "", NOT_TRIED)
    return str(error)
