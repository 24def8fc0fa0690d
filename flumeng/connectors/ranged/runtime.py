"""Runs a ``RangedInput`` as finder (discovery), input (collector) and reader (executors). A
partition ``NAME`` of incarnation ``I`` of input ``X`` is ``NAME.I@X`` in ZooKeeper; bytes not
allowed there become ``_xHH_``, in hexadecimal."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flumeng.config import FlowSpec, registry
from flumeng.connectors.api.finding import Before, Bounds, FinderBase, Findings, FindingTask, Offer
from flumeng.connectors.api.ranged import Kind, Range, Reach, Standstill
from flumeng.connectors.api.ranged_input import Ends, RangedInput
from flumeng.connectors.ranged.positions import Probes, WatchedPositions, described
from flumeng.connectors.ranged.watcher import EndWatcher
from flumeng.control.snapshot.partitions import label_of
from flumeng.control.zookeeper import Store
from flumeng.events.schema import EVENT_SCHEMA, READ_SCHEMA
from flumeng.platform.errors import CorruptError, UserError

REPLACED = "was replaced by a new partition of the same name before all of it was read"
_LONGEST_NAME = 150
_FOREIGN = re.compile(rb"[^A-Za-z0-9._-]|_(?=x[0-9a-f]{2}_)")
_ESCAPED = re.compile(rb"_x([0-9a-f]{2})_")
_INCARNATION = re.compile(r"[A-Za-z0-9_-]{1,30}", re.ASCII)


def partition_name(source: str, name: str, incarnation: str) -> str:
    """Return the partition's name in ZooKeeper. Raises UserError for an empty or overlong name, and
    for an incarnation other than 1 to 30 letters, digits, underscores and dashes."""
    escaped = _FOREIGN.sub(lambda match: b"_x%02x_" % match[0][0], os.fsencode(name)).decode()
    if not escaped or len(escaped) > _LONGEST_NAME or not _INCARNATION.fullmatch(incarnation):
        raise UserError(
            f"{source}: invalid name of a partition: {name!r}, incarnation {incarnation!r}. A name "
            f"has 1 to {_LONGEST_NAME} characters; a byte other than letters, digits, dots, "
            "underscores and dashes counts five. An incarnation has 1 to 30 letters, digits, "
            "underscores and dashes"
        )
    return f"{escaped}.{incarnation}@{source}"


def name_and_incarnation(partition: str) -> tuple[str, str]:
    """Return name and incarnation from a name in ZooKeeper."""
    escaped, _, incarnation = partition.rpartition("@")[0].rpartition(".")
    name = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), escaped.encode())
    return os.fsdecode(name), incarnation


class RangedFinder(FinderBase):
    def __init__(self, source: RangedInput) -> None:
        self._source = source
        self.no_times = f"{source.name} cannot find offsets by time"

    def find(self, before: Before) -> Findings:
        listed = self._source.list()
        names = {
            partition_name(self._source.name, name, incarnation): name
            for name, incarnation in listed.items()
        }
        new = {full: name for full, name in names.items() if full not in before.partitions}
        ends = self._source.ends(list(new.values())) if new else {}
        old = {full: Offer() for full in names if full not in new}
        begun = {full: Offer(ends[name].first) for full, name in new.items() if name in ends}
        silent = sorted(name for name in new.values() if name not in ends)
        troubles = (f"the ends of {', '.join(silent)} are not known yet",) if silent else ()
        gone = frozenset(before.partitions) - names.keys()
        own = frozenset(name for name in gone if name.endswith(f"@{self._source.name}"))
        return Findings(old | begun, gone=own, troubles=troubles)

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        ends = _by_full_name(self._source, partitions)
        own = {name: reported for name, reported in ends.items() if _is_of(name, reported)}
        return {name: Bounds(reported.first, reported.end) for name, reported in own.items()}

    def close(self) -> None:
        self._source.close()


class RangedRuntime:
    """``Input`` of a ``RangedInput``. Tasks whose sources have equal options share a watcher."""

    def __init__(self, kind: type[RangedInput]) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._watchers: list[tuple[Any, _Watcher]] = []
        self.probes = Probes(kind.name)

    def positions(self, wake: Callable[[], None]) -> RangedPositions:
        return RangedPositions(self, wake)

    def reader(self, spec: FlowSpec) -> RangedReader | None:
        options = self.options(spec)
        return None if options is None else RangedReader(self._kind, options)

    def options(self, spec: FlowSpec) -> Any:
        parts = (part.options for part in spec.partitioned if part.name == self._kind.name)
        return next(parts, None)

    def watcher(self, options: Any) -> _Watcher:
        with self._lock:
            for watched, watcher in self._watchers:
                if watched == options:
                    return watcher
            self._watchers.append((options, _Watcher(self._kind(options))))
            return self._watchers[-1][1]


class RangedPositions(WatchedPositions):
    def __init__(self, runtime: RangedRuntime, wake: Callable[[], None]) -> None:
        super().__init__(runtime.probes, wake)
        self._runtime = runtime

    def open(self, spec: FlowSpec) -> None:
        self.close()
        self._reader = self._runtime.reader(spec)
        options = self._runtime.options(spec)
        self._watcher = None if options is None else self._runtime.watcher(options)

    def describe(self, standstill: Standstill) -> str:
        return described(standstill, _TEXTS)


_STOPS = "partition {label} stops at offset {offset}, which is retried: {why}; to skip the offset: "
_RESET = "pause the flow, and `flumeng flow reset --to {label}=OFFSET --partitions {partition}`"
_TEXTS: dict[Kind, str] = {
    "nonsense": "partition {label} stands still: {why}",
    "lost": "partition {label} ends at offset {offset}, but offset {acked} is acked: events are "
    "lost, or the ack was set too high; to go on at the end of the partition: pause the flow, and "
    "`flumeng flow reset --to latest`",
    "gone": "partition {label} begins at offset {offset}, but only offset {acked} is acked; to go "
    "on with the events that are left: pause the flow, and `flumeng flow reset --to earliest`",
    "held": _STOPS + _RESET,
    "damaged": _STOPS + _RESET,
    "unanswered": "partition {label} waits at offset {offset}: {why}",
}


class _Watcher(EndWatcher[Reach]):
    def __init__(self, source: RangedInput) -> None:
        super().__init__(f"{source.name} positions")
        self._source = source

    def ask(self, partitions: frozenset[str]) -> dict[str, Reach]:
        ends = _by_full_name(self._source, partitions)
        return {name: _reach(name, reported) for name, reported in ends.items()}

    def failed(self, why: str) -> Reach:
        return Reach("", 0, trouble=why)


@dataclass(frozen=True)
class RangedReader:
    """``Reader`` that is pickled for Spark's executors; each read opens a ``RangedInput`` there."""

    kind: type[RangedInput]
    options: Any

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*READ_SCHEMA, *self.kind.schema])

    @property
    def modules(self) -> frozenset[str]:
        return frozenset({self.kind.__module__})

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Yield events. ``address``: the incarnation reported with the ends, or empty."""
        name, _ = name_and_incarnation(piece.partition)
        at = piece.start
        source = self.kind(self.options)
        try:
            for batch in source.read(name, piece.start, piece.end):
                if batch.num_rows:
                    events = self._completed(batch, piece)
                    if address:
                        _require_incarnation(source, piece.partition)
                    at = _following(events, at, piece.end)
                    yield events
            if address and at < piece.end:  # maybe shorter than the partition that it replaced
                _require_incarnation(source, piece.partition)
        finally:
            source.close()

    def _completed(self, batch: pa.RecordBatch, piece: Range) -> pa.RecordBatch:
        rows = batch.num_rows
        given = {
            "ts": pa.scalar(time.time_ns() // 1000, EVENT_SCHEMA.field("ts").type),
            "host": pa.scalar("", pa.string()),
            "journal": pa.scalar(piece.partition, pa.string()),
            "replayed": pa.scalar(piece.replayed, pa.bool_()),
        }
        columns = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names and field.name not in ("journal", "replayed")
            else pa.repeat(given.get(field.name, pa.scalar(None, field.type)), rows)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _following(events: pa.RecordBatch, at: int, end: int) -> int:
    """Return the offset after the batch. Raises CorruptError for offsets out of range or order."""
    offsets = events.column("seq").to_numpy(zero_copy_only=False)
    if offsets[0] < at or offsets[-1] >= end or not bool((offsets[1:] > offsets[:-1]).all()):
        got = f"offsets {offsets[0]} to {offsets[-1]}"
        raise CorruptError(f"the source returned {got} instead of {at} to {end}")
    return int(offsets[-1]) + 1


def _by_full_name(source: RangedInput, partitions: Collection[str]) -> dict[str, Ends]:
    names = {partition: name_and_incarnation(partition)[0] for partition in partitions}
    ends = source.ends(list(dict.fromkeys(names.values())))
    return {partition: ends[name] for partition, name in names.items() if name in ends}


def _is_of(partition: str, ends: Ends) -> bool:
    """Return whether the ends belong to this incarnation; True when they do not name one."""
    return ends.incarnation in ("", name_and_incarnation(partition)[1])


def _reach(partition: str, ends: Ends) -> Reach:
    if not _is_of(partition, ends):
        return Reach("", 0, trouble=REPLACED)
    return Reach(ends.incarnation, ends.end, floor=ends.first, closed=ends.closed)


def _require_incarnation(source: RangedInput, partition: str) -> None:
    """Raise CorruptError if the partition was replaced. Called between reading and returning."""
    if not all(_is_of(partition, ends) for ends in _by_full_name(source, [partition]).values()):
        raise CorruptError(f"partition {label_of(partition)} {REPLACED}")


@dataclass(frozen=True)
class _Finders:
    """``FinderClass`` and ``ProbedFinder`` of a ``RangedInput``."""

    kind: type[RangedInput]

    def of(self, options: Any, store: Store, task: FindingTask) -> RangedFinder:
        del store, task  # a ranged input needs neither
        return RangedFinder(self.kind(options))

    def probe(self, options: Any) -> None:
        source = self.kind(options)
        try:
            source.list()
        finally:
            source.close()


def finder_class(source: str) -> Any:
    """Return the ``FinderClass`` of a source, which may be a ``ProbedFinder``. Raises ImportError
    or UserError when it cannot be loaded."""
    kind = registry.get("source", source).finder_class()
    return _Finders(kind) if issubclass(kind, RangedInput) else kind


def installed(name: str) -> RangedRuntime | None:
    """Return the ``Input`` of a ranged source, else None. Raises UserError if it cannot load."""
    entry = registry.find("source", name)
    if entry is None:
        return None
    kind = entry.implementation_class()
    return RangedRuntime(kind) if issubclass(kind, RangedInput) else None
