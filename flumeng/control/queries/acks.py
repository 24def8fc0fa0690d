"""Acks and cursors of flows, and the ends of partitions as reported by nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flumeng.control.queries import fan_out
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot import partitions
from flumeng.control.snapshot.partitions import QUEUED, PartitionBounds
from flumeng.control.zookeeper import Found, ReadableStore, Unreadable, Versioned
from zkschema import paths, records
from zkschema.bootstrap import CURSOR_MAIN

UNREGISTERED = PartitionBounds()


class Position(Protocol):
    """The retained offsets of a partition: from ``floor`` to before ``safe``."""

    @property
    def floor(self) -> int: ...
    @property
    def safe(self) -> int: ...


Ask = Callable[[str], Mapping[str, Position]]
"""Returns the positions of all partitions served at an address. Raises ``UnavailableError``."""


def ask_worker(address: str) -> Mapping[str, Position]:
    with fan_out.client(address) as client:
        return client.positions()


@dataclass(frozen=True)
class AckRow:
    """An ack. ``epoch``, ``offset``: None before the first. ``end``, ``lag``: None if unknown."""

    flow: str
    partition: str
    epoch: int | None
    offset: int | None
    end: int | None
    lag: int | None
    problem: str = ""


@dataclass(frozen=True)
class Positions:
    """Positions by node and ``partitions.key``; ``silent`` nodes did not answer."""

    by_node: Mapping[str, Mapping[str, Position]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    def end_of(self, key: str, partition: PartitionBounds) -> int | None:
        """Return the end or None. A partition found by discovery may be reported by any node."""
        if partition.end is not None:
            return partition.end
        asked = [self.by_node.get(partition.node, {})] if partition.node else self.by_node.values()
        return max((answer[key].safe for answer in asked if key in answer), default=None)


def positions(source: ReadableStore, ask: Ask) -> Positions:
    return Positions(*fan_out.ask_all(ReadCache.of(source), ask))


def acks_of(source: ReadableStore, where: Positions, flow: str | None = None) -> list[AckRow]:
    """Return a row per partition of a flow (None: of all flows), also before its first ack."""
    cache = ReadCache.of(source)
    names = cache.children(paths.flows()) if flow is None else [flow]
    by_flow = partitions.of_flows(cache, names)
    acked = cache.children_many([paths.cursor(name, CURSOR_MAIN) for name in names])
    keys = [
        (name, partition)
        for name, listed in zip(names, acked, strict=True)
        for partition in sorted({*by_flow[name], *listed})
    ]
    acks = cache.read_each([partitions.ack_path(*key) for key in keys])
    return [
        _ack(*key, ack, by_flow[key[0]].get(key[1], UNREGISTERED), where)
        for key, ack in zip(keys, acks, strict=True)
    ]


def _ack(
    flow: str,
    partition: str,
    ack: Found[records.Ack],
    partition_known: PartitionBounds,
    where: Positions,
) -> AckRow:
    record = ack.value if isinstance(ack, Versioned) else None
    end = where.end_of(partitions.key(flow, partition), partition_known)
    unknown = end is None or isinstance(ack, Unreadable)
    start = record.emitted if record else partition_known.start
    return AckRow(
        flow=flow,
        partition=partition,
        epoch=record.epoch if record else None,
        offset=record.offset if record else None,
        end=end,
        lag=None if unknown else max(0, partitions.distance(partition, start, end or 0)),
        problem=str(ack) if isinstance(ack, Unreadable) else "",
    )


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` events or items (``what``) in all partitions with a known end."""

    what: str
    done: int
    total: int


def progress(store: ReadableStore, ask: Ask, flow: str) -> Progress:
    cache = ReadCache.of(store)
    discovered = partitions.of_flows(cache, [flow])[flow]
    left = total = 0
    items = []
    for row in acks_of(cache, positions(cache, ask), flow):
        if row.lag is None or row.end is None or row.partition not in discovered:
            continue
        whole = partitions.distance(row.partition, discovered[row.partition].start, row.end)
        total += max(whole, row.lag)
        left += row.lag
        items.append(partitions.input_of(row.partition) in QUEUED)
    return Progress("items" if items and all(items) else "events", total - left, total)
