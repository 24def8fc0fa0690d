"""What a collector counts of its own work, for its metrics. Nothing here reads ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

from flumeng.metrics.health import Health
from flumeng.metrics.table import Reading

STUCK_SECONDS = 120.0
"""Spark may take so long to start; after that its probes turn every few seconds."""


class Measures:
    """Written by the threads of tasks; ``readings`` may be asked from any thread."""

    def __init__(self) -> None:
        self.health = Health(STUCK_SECONDS)
        self.health.needs(lambda: None if self.spark_runs else "Spark is starting")
        self.spark_runs = False

    def readings(self) -> Iterator[Reading]:
        yield from ()
