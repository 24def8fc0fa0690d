"""Journals as a collector's input: one watch and connection per server, for all tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import Kind, Range, Reach, Standstill
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.executor_tokens import ExecutorTokens
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.connectors.journals.reader import READ_SECONDS, JournalReader
from flumeng.connectors.ranged.positions import Probes, WatchedPositions, described
from flumeng.control.snapshot.partitions import journal_of
from flumeng.control.zookeeper import Store
from flumeng.events.journal_names import node_of
from flumeng.journal.serving.client import JournalClient

_TEXTS: dict[Kind, str] = {
    "nonsense": "journal {partition} stands still: {why}",
    "lost": "journal {partition} ends at seq {offset}, but seq {acked} is acked: the journal has "
    "lost durable events; run on node {node}: `flumeng journal verify`",
    "gone": "journal {partition} begins at seq {offset}, but only seq {acked} is acked: its ack or "
    "its oldest segments were lost; to go on with the events that are left: `flumeng ack advance`",
    "held": "journal {partition} stops at seq {offset}: the next events are lost, and the loss "
    "must be accepted; run on node {node}: `flumeng journal repair --accept-loss`",
    "damaged": "journal {partition} stops at seq {offset}: {why}; run on node {node}: "
    "`flumeng journal verify`, then `repair`",
    "unanswered": "journal {partition} waits at seq {offset}: {why}",
}


class Journals:
    """``Input`` of journals. ``executor_tokens`` admit executors unless the cluster is open."""

    def __init__(self, store: Store, executor_tokens: ExecutorTokens | None = None) -> None:
        self._executor_tokens = executor_tokens
        self._watcher = PositionWatcher(Addresses(store))
        self._probes = Probes("journals")

    def positions(self, wake: Callable[[], None]) -> JournalPositions:
        return JournalPositions(self._watcher, self._probes, wake)

    def reader(self, spec: FlowSpec) -> JournalReader:
        del spec  # all journals are read alike
        return JournalReader(executor_tokens=self._executor_tokens)


class JournalPositions(WatchedPositions):
    def __init__(
        self, watcher: PositionWatcher, probes: Probes, wake: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(probes, wake)
        self._watcher = watcher

    def open(self, spec: FlowSpec) -> None:
        """Do nothing: only ZooKeeper has the addresses of journals, not the flow."""

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        names = {journal_of(name): name for name in partitions}
        return {names[journal]: reach for journal, reach in super().of(names).items()}

    def refresh(self, partitions: Collection[str]) -> None:
        super().refresh(list(map(journal_of, partitions)))

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        return super().probe(journal_of(partition), address, start, end)

    def _try(self, piece: Range, address: str) -> None:
        with JournalClient(address, READ_SECONDS) as client:
            next(client.read(piece.partition, piece.start, piece.end), None)

    def describe(self, standstill: Standstill) -> str:
        return describe(standstill)


def describe(standstill: Standstill) -> str:
    """Return one sentence for operators, with the command that helps, if any."""
    journal = journal_of(standstill.partition)
    return described(replace(standstill, partition=journal), _TEXTS, node=node_of(journal))
