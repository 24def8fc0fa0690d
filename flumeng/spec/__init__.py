"""The flow language: from the text of a flow file to a checked ``FlowSpec``.

Pure: no files, no network, and nothing that only a worker needs is imported.
"""

from __future__ import annotations

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
    "parse_flow",
]


@lru_cache(maxsize=256)
def parse_flow(text: str) -> FlowSpec:
    """Read one flow; the same text is read once. Raises ``SpecError`` with every problem of it."""
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
    return spec
