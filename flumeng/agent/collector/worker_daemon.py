"""Spark's daemon of Python workers on this host. It imports what each batch needs before it forks
workers: these start at once, and share the memory of the modules."""

from __future__ import annotations

import gc
import importlib

MODULES = frozenset(
    (
        "flumeng.agent.collector.batch_times",
        "flumeng.agent.collector.executor_units",
        "flumeng.connectors.files.sink",
        "flumeng.connectors.journals.reader",
        "flumeng.connectors.ranged.routing",
        "pandas",  # Arrow imports it for its first array of Python values
        "pyarrow.flight",
        "pyarrow.parquet",
    )
)
"""What an executor imports to write a journal's events into Parquet files."""


def main() -> None:
    from pyspark import daemon  # noqa: PLC0415  the collector itself needs only this module's name

    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # garbage collection would write to shared pages
    daemon.manager()


if __name__ == "__main__":
    main()
