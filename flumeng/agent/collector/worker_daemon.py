"""Starts Spark's Python workers on this host, in place of ``pyspark.daemon``. It imports the usual
modules first, then forks: workers start sooner, and share the memory of the modules."""

from __future__ import annotations

import gc
import importlib

MODULES = frozenset(
    (
        "cryptography.hazmat.primitives.ciphers.aead",
        "flumeng.agent.collector.batch_times",
        "flumeng.agent.collector.executor_units",
        "flumeng.agent.collector.sealed_stage",
        "flumeng.connectors.files.sink",
        "flumeng.connectors.journals.reader",
        "flumeng.connectors.ranged.routing",
        "pandas",  # Arrow imports it for its first array of Python values
        "pyarrow.flight",
        "pyarrow.parquet",
        "pyspark.worker",
    )
)
"""The modules that read journals and write Parquet files, which most flows do."""


def main() -> None:
    from pyspark import daemon  # noqa: PLC0415  the collector itself needs only this module's name

    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # garbage collection would write to shared pages
    daemon.manager()


if __name__ == "__main__":
    main()
