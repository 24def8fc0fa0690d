"""The events of a partition: a journal on a disk, or a partition of the modelled Kafka."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PartitionFile:
    """Half-open: events from ``floor`` up to ``end`` are there."""

    flow: str
    floor: int = 0
    end: int = 0
    closed: bool = False
