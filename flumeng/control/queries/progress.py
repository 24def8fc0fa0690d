"""How far a flow is with what it has to read: journals, topics and queues alike. Reads only."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.control.queries.acks import Ask, acks_of, positions
from flumeng.control.queries.reading import Reading
from flumeng.control.snapshot import partitions
from flumeng.control.snapshot.partitions import QUEUED
from flumeng.control.zookeeper import ReadableStore


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` in all partitions whose end somebody knows; ``what`` are counted."""

    what: str
    done: int
    total: int


def progress(store: ReadableStore, ask: Ask, flow: str) -> Progress:
    """From where each partition began. Raises ``UserError`` without a cluster,
    ``UnavailableError``."""
    reading = Reading.of(store)
    known = partitions.of_flows(reading, [flow])[flow]
    left = total = 0
    items = []
    for row in acks_of(reading, positions(reading, ask), flow):
        if row.lag is None or row.end is None or row.partition not in known:
            continue
        whole = partitions.distance(row.partition, known[row.partition].start, row.end)
        total += max(whole, row.lag)
        left += row.lag
        items.append(partitions.input_of(row.partition) in QUEUED)
    return Progress("items" if items and all(items) else "events", total - left, total)
