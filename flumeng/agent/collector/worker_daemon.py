"""Starts Spark's Python workers on this host, in place of ``pyspark.daemon``. It imports the usual
modules first, then forks: workers start sooner, and share the memory of the modules."""

from __future__ import annotations

import gc
import importlib
import os

from flumeng.platform import arrow_pandas

PLUG_INS = "flumeng_plug_ins"
"""Set in the environment when plug-ins are installed, which may use pandas."""

MODULES = frozenset(
    (
        "cryptography.hazmat.primitives.ciphers.aead",
        "flumeng.agent.collector.batch_times",
        "flumeng.agent.collector.executor_units",
        "flumeng.agent.collector.sealed_stage",
        "flumeng.connectors.files.sink",
        "flumeng.connectors.journals.reader",
        "flumeng.connectors.ranged.routing",
        "pyarrow.flight",
        "pyarrow.parquet",
        "pyspark.worker",
    )
)
"""The modules that read journals and write Parquet files, which most flows do."""


def main() -> None:
    from pyspark import daemon  # noqa: PLC0415  the collector itself needs only this module's name

    arrow_pandas.leave_out()
    for module in MODULES:
        importlib.import_module(module)
    if PLUG_INS in os.environ:
        arrow_pandas.take_in()
    gc.collect()
    gc.freeze()  # garbage collection would write to shared pages
    daemon.manager()


if __name__ == "__main__":
    main()
