"""Replayed dead letters as a collector's input; the end of each part is known."""

from __future__ import annotations

from collections.abc import Callable, Collection

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import Reach, Standstill
from flumeng.connectors.dead_letters.options import DeadLettersSource, part_of
from flumeng.connectors.dead_letters.reader import DeadLettersReader
from flumeng.connectors.ranged.positions import Probes, WatchedPositions
from flumeng.connectors.ranged.reading import source_of


class DeadLettersInput:
    def __init__(self) -> None:
        self._probes = Probes("letters")

    def positions(self, wake: Callable[[], None]) -> DeadLettersPositions:
        return DeadLettersPositions(self._probes, wake)

    def reader(self, spec: FlowSpec) -> DeadLettersReader | None:
        """Return the flow's reader, if any. Raises UserError for missing store credentials."""
        source = source_of(spec, DeadLettersSource)
        return None if source is None else DeadLettersReader.of(source)


class DeadLettersPositions(WatchedPositions):
    """``Positions`` of a replay. No server is watched: the flow's options contain the ends."""

    _source: DeadLettersSource | None = None

    def open(self, spec: FlowSpec) -> None:
        self._source = source_of(spec, DeadLettersSource)
        self._reader = DeadLettersReader.of(self._source) if self._source else None

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        if self._source is None:
            return {}
        parts = self._source.partitions(partitions)
        return {name: Reach("", rows, closed=True) for name, rows in parts.items()}

    def describe(self, standstill: Standstill) -> str:
        source = self._source
        letters = f"the dead letters of flow {source.of}" if source else standstill.partition
        return (
            f"part {part_of(standstill.partition)} of {letters} stands still at row "
            f"{standstill.offset}: {standstill.why}. Repair the file, or delete this flow and "
            "replay the rest with `flumeng flow dead replay --again`"
        )
