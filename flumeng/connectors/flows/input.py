"""Other flows' journals as an input of a collector: its own journals under another name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import Positions, Reach, Standstill
from flumeng.connectors.flows.reader import SubscribedReader
from flumeng.connectors.journals.input import Journals
from flumeng.control.snapshot.partitions import journal_of, subscribed


class Subscriptions:
    """See ``Input``."""

    def __init__(self, journals: Journals) -> None:
        self._journals = journals

    def positions(self, wake: Callable[[], None]) -> Positions:
        return SubscribedPositions(self._journals.positions(wake))

    def reader(self, spec: FlowSpec) -> SubscribedReader:
        return SubscribedReader(self._journals.reader(spec))


class SubscribedPositions:
    """See ``Positions``: those of ``journals``."""

    def __init__(self, journals: Positions) -> None:
        self._journals = journals

    def open(self, spec: FlowSpec) -> None:
        self._journals.open(spec)

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        found = self._journals.of(list(map(journal_of, partitions)))
        return {subscribed(name): reach for name, reach in found.items()}

    def refresh(self, partitions: Collection[str]) -> None:
        self._journals.refresh(list(map(journal_of, partitions)))

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        return self._journals.probe(journal_of(partition), address, start, end)

    def describe(self, standstill: Standstill) -> str:
        return self._journals.describe(
            replace(standstill, partition=journal_of(standstill.partition))
        )

    def close(self) -> None:
        self._journals.close()
