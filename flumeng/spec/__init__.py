"""The flow language: from the text of a flow file to a checked ``FlowSpec``.

Pure: no files, no network, and nothing that only a worker needs is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from flumeng.spec import document, guarantees
from flumeng.spec.component import Component
from flumeng.spec.decode import INVALID, Decoder
from flumeng.spec.flow import (
    Batch,
    CollectPlace,
    FlowSpec,
    IngestPlace,
    JournalOptions,
    Place,
    Rollout,
    TaskRange,
)
from flumeng.spec.problems import Problem, SpecError

__all__ = [
    "Batch",
    "CollectPlace",
    "Component",
    "FlowSpec",
    "IngestPlace",
    "JournalOptions",
    "Place",
    "Problem",
    "Rollout",
    "SpecError",
    "TaskRange",
    "check_flow",
    "parse_flow",
]


def parse_flow(text: str) -> FlowSpec:
    """Read one flow; the same text is read once. Raises ``SpecError`` with every problem of it but
    those of its expressions: see ``check_flow``."""
    return _read(text)[0]


def check_flow(text: str) -> FlowSpec:
    """Read one flow of which nothing is known yet: its expressions too, and whether its filters and
    sinks have the columns that they need. Raises ``SpecError``."""
    spec, lines = _read(text)
    if spec.filters or spec.branches:
        from flumeng.spec import columns  # noqa: PLC0415  # loads sqlglot, which nobody else needs

        wrong = [
            Problem(_line(lines, path), path, message) for path, message in columns.check(spec)
        ]
        if wrong:
            raise SpecError(wrong)
    return spec


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[FlowSpec, Mapping[str, int]]:
    root = document.compose(text)
    decoder = Decoder()
    spec = decoder.mapping(FlowSpec, root, "")
    together = [
        Problem(decoder.lines[path], path, message)
        for path, message in guarantees.check(decoder.parts)
    ]
    if spec is INVALID or together:
        raise SpecError(decoder.problems + together)
    assert isinstance(spec, FlowSpec)
    return spec, decoder.lines


def _line(lines: Mapping[str, int], path: str) -> int:
    """Where ``path`` stands; an option may be written with its name or without it."""
    named = path.replace("select[", "select.expressions[").replace("_of[", "_of.sinks[")
    return lines.get(path) or lines.get(named) or lines[path.partition("[")[0]]
