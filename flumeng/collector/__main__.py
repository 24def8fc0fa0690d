"""``python -m flumeng.collector``: started by a node, with which it speaks over pipes."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession

from flumeng.collector import class_archive, spark
from flumeng.node.in_progress import InProgress
from flumeng.node.protocol import Parent
from flumeng.runtime import logs, parentage

parser = argparse.ArgumentParser(prog="flumeng.collector", description=__doc__)
parser.add_argument("--zk", required=True, help="host:port[,host:port]/chroot")
parser.add_argument("--node", required=True, help="the node that started this process")
parser.add_argument("--data", required=True, type=Path, help="the node's data directory")
parser.add_argument("--policy", type=Path, help="where flows may write")
parser.add_argument("--session-seconds", type=float, default=10.0)
parser.add_argument("--metrics-channel", type=int, help="a descriptor; asked for metrics")


def main() -> int:
    """Until the node says stop or is gone; the exit code."""
    given = parser.parse_args()
    logs.to_stderr("collector")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    parent = Parent.take_stdio()
    parentage.go_on_without_parent()
    starting: Future[SparkSession] = Future()
    cache = class_archive.cache_of(given.data)
    Thread(target=_start, args=(given.data, cache, starting), name="start", daemon=True).start()
    from flumeng.collector import daemon  # noqa: PLC0415  # loads for as long as Spark's launcher

    return daemon.run(
        parent,
        starting,
        hosts=given.zk,
        session_seconds=given.session_seconds,
        cache=cache,
        policy_file=given.policy,
        in_progress=InProgress(given.data),
        metrics_channel=given.metrics_channel,
    )


def _start(data: Path, cache: Path, starting: Future[SparkSession]) -> None:
    try:
        options = class_archive.java_options(cache)
        starting.set_result(spark.start(data / "collector", more_java_options=options))
    except BaseException as error:
        starting.set_exception(error)


code = main()
sys.stderr.flush()
os._exit(code)  # Spark's own threads and the JVM end with the process; nothing waits for them.
