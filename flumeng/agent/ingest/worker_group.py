"""The ingest workers of one node."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.config import Component, registry
from flumeng.config.component import SourceOptions
from flumeng.connectors.api.source import Source


@dataclass(frozen=True)
class WorkerGroup:
    """Worker ``number`` of ``size``. Sources that spread run in all workers, others in worker 0."""

    number: int
    size: int

    def serves(self, number: int) -> bool:
        return number == self.number or (self.number == 0 and number >= self.size)

    def runs(self, source: Component[SourceOptions]) -> bool:
        return self.number == 0 or spreads(source)


ALONE = WorkerGroup(0, 1)


def spreads(source: Component[SourceOptions]) -> bool:
    implementation: type[Source] = registry.get("source", source.name).implementation_class()
    return implementation.spreads
