"""Rates of Spark: of a cluster beside one host, of a notebook beside the collector, and of SQL
beside plain Spark; and the time of a collector's start."""

from __future__ import annotations

import importlib

PARTS = ("cluster", "read", "sql", "start")


def run(events: int = 8_000_000, only: str = ",".join(PARTS)) -> dict[str, object]:
    """Each module ``benches.spark_NAME`` says what it compares; ``only`` names some of them."""
    found: dict[str, object] = {"events": events}
    for name in only.split(","):
        found |= importlib.import_module(f"benches.spark_{name}").measure(events)
    return found
