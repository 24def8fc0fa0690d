"""Implements ``Positions`` for Kafka: up to which offsets a task's partitions can be read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import CutError, Gone, Range, Reach, Standstill
from flumeng.connectors.kafka.access import Access
from flumeng.connectors.kafka.brokers import Brokers, KafkaBrokers
from flumeng.connectors.kafka.partition_names import parsed
from flumeng.connectors.kafka.reader import KafkaReader
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.connectors.kafka.watcher import Extent, ExtentWatcher
from flumeng.control.snapshot.partitions import label_of


def describe(standstill: Standstill) -> str:
    label, offset, acked = label_of(standstill.partition), standstill.offset, standstill.acked
    match standstill.kind:
        case "nonsense":
            return f"partition {label} stands still: {standstill.why}"
        case "lost" if standstill.why:
            return (
                f"the log of partition {label} was cut at offset {offset}, and offset {acked} is "
                f"acked: another leader in Kafka has written other messages from {offset} to "
                f"{acked - 1}, which were not read; to read them: pause the flow, and `flumeng "
                f"flow reset --to {label}={offset} --partitions {standstill.partition}`; to skip "
                f"them: the same with {label}={acked}, or set on_gone: earliest"
            )
        case "lost":
            return (
                f"partition {label} ends at offset {offset}, but offset {acked} is acked: Kafka "
                "has lost messages that were committed, or the ack was set too high; to go on at "
                "the partition's end: pause the flow, and `flumeng flow reset --to latest`"
            )
        case "gone":
            return (
                f"partition {label} begins at offset {offset}, but only offset {acked} is acked: "
                "Kafka has deleted unread messages; to go on with the messages that are left: "
                "pause the flow, and `flumeng flow reset --to earliest`, or set on_gone: earliest"
            )
        case "held" | "damaged":
            return (
                f"partition {label} stops at offset {offset}, which is retried: {standstill.why}; "
                "to skip the offset: pause the flow, and `flumeng flow reset --to "
                f"{label}=OFFSET --partitions {standstill.partition}`"
            )
        case "unanswered":
            return f"partition {label} waits at offset {offset}: {standstill.why}"


PROBE_THREADS = 4
CUT = (
    "Kafka has cut the log at an acked offset, and another leader has written other messages from "
    "there on: those below the ack are not read"
)
UNKNOWN = Reach("", 0, trouble="the name is not that of a Kafka partition")


def source_of(spec: FlowSpec) -> KafkaSource | None:
    """Return the flow's only Kafka source, or None."""
    sources = (part.options for part in spec.partitioned)
    return next((options for options in sources if isinstance(options, KafkaSource)), None)


def reader_of(spec: FlowSpec) -> KafkaReader | None:
    source = source_of(spec)
    if source is None:
        return None
    return KafkaReader.of(source, journaled=spec.journal.kafka is not None)


class Watchers:
    """A process's extent watchers, one for each set of brokers and isolation level."""

    def __init__(self, connect: Callable[[Access, bool], Brokers] | None = None) -> None:
        self._connect = connect or (lambda access, all_: KafkaBrokers(access, committed=all_))
        self._lock = threading.Lock()
        self._watchers: dict[tuple[Access, bool], ExtentWatcher] = {}
        self.probes = ThreadPoolExecutor(PROBE_THREADS, "kafka probe")

    def of(self, source: KafkaSource) -> ExtentWatcher:
        """Return the watcher for a source. Raises UserError when the password is not found."""
        key = Access.of(source), source.isolation == "committed"
        with self._lock:
            if key not in self._watchers:
                self._watchers[key] = ExtentWatcher(self._connect(*key))
            return self._watchers[key]


class KafkaPositions:
    """Implements ``Positions``. ``wake`` is called from other threads."""

    def __init__(self, watchers: Watchers, wake: Callable[[], None]) -> None:
        self._watchers = watchers
        self._wake = wake
        self._source: KafkaSource | None = None
        self._reader: KafkaReader | None = None
        self._watcher: ExtentWatcher | None = None
        self._partitions: frozenset[str] | None = None
        self._parsed: frozenset[str] = frozenset()

    def open(self, spec: FlowSpec) -> None:
        self.close()
        self._source, self._reader = source_of(spec), reader_of(spec)
        self._watcher = self._watchers.of(self._source) if self._source else None

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        """Return how far known partitions can be read; empty if the flow has no Kafka source."""
        if self._watcher is None:
            return {}
        names = frozenset(partitions)
        if names != self._partitions:
            self._parsed = frozenset(parsed(names))
            self._watcher.watch(self, self._parsed, self._wake)
            self._partitions = names
        extents = self._watcher.of(self._parsed)
        reaches = {name: self._reach(name, extent) for name, extent in extents.items()}
        return reaches | dict.fromkeys(names - self._parsed, UNKNOWN)

    def refresh(self, partitions: Collection[str]) -> None:
        if self._watcher is not None:
            self._watcher.refresh(partitions)

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        reader = self._reader
        assert reader is not None, "a reachable partition has a reader"

        def read() -> None:
            next(reader.read(Range(partition, start, end), address), None)

        probe = self._watchers.probes.submit(read)
        probe.add_done_callback(lambda _: self._wake())
        return probe

    def find_cut(self, partition: str, offset: int, leader_epoch: int) -> Future[Gone | None]:
        """Search for a truncation of the partition's log; see ``FindingCuts``."""
        source, watcher = self._source, self._watcher
        assert source is not None, "a reachable partition has a source"
        assert watcher is not None, "it is open"

        def find() -> Gone | None:
            try:
                watcher.compare(partition, offset, leader_epoch)
            except CutError as error:
                if source.on_gone != "earliest":
                    raise
                return Gone(error.end, offset, CUT)
            return None

        search = self._watchers.probes.submit(find)
        search.add_done_callback(lambda _: self._wake())
        return search

    def describe(self, standstill: Standstill) -> str:
        return describe(standstill)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.forget(self)
        self._watcher, self._partitions = None, None

    def _reach(self, name: str, extent: Extent) -> Reach:
        assert self._source is not None
        passes = self._source.on_gone == "earliest"
        end = self._source.end_offsets.get(label_of(name))
        safe = extent.safe if end is None else min(extent.safe, end)
        if extent.remade and passes and safe:
            why = f"{extent.trouble} before they were read"
            return Reach(extent.topic_id, safe, closed=True, gone_below=safe, gone_why=why)
        if extent.trouble:
            return Reach("", 0, trouble=extent.trouble)
        return Reach(
            extent.topic_id,
            safe,
            floor=0 if passes else extent.floor,
            closed=end is not None and extent.safe >= end,
            leader_epoch=extent.leader_epoch,
            gone_below=min(extent.floor, safe) if passes else 0,
        )
