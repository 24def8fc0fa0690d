"""``python -m flumeng.collector``: started by a node, with which it speaks over pipes."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from flumeng.collector import class_archive, spark
from flumeng.collector.addresses import Addresses
from flumeng.collector.engine import SparkEngine
from flumeng.collector.liveness import Liveness
from flumeng.collector.measures import Measures
from flumeng.collector.pipeline import SparkPipeline
from flumeng.collector.positions import PositionWatcher, WatchedJournals
from flumeng.collector.probes import Probes
from flumeng.collector.task import Assignment
from flumeng.collector.worker import Worker
from flumeng.errors import UserError
from flumeng.node.protocol import Parent
from flumeng.runtime import logs, parentage
from flumeng.spec import parse_flow
from flumeng.store.zookeeper import ZooKeeperStore
from zkschema.records import COLLECT

LEAST_SLOTS = 2

if TYPE_CHECKING:
    from flumeng.metrics.instruments import Instruments

parser = argparse.ArgumentParser(prog="flumeng.collector", description=__doc__)
parser.add_argument("--zk", required=True, help="host:port[,host:port]/chroot")
parser.add_argument("--node", required=True, help="the node that started this process")
parser.add_argument("--data", required=True, type=Path, help="the node's data directory")
parser.add_argument("--session-seconds", type=float, default=10.0)
parser.add_argument("--metrics-channel", type=int, help="a descriptor; asked for metrics")


def main() -> int:
    """Until the node says stop or is gone; the exit code."""
    given = parser.parse_args()
    logs.to_stderr("collector")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    parent = Parent.take_stdio()
    measures = Measures()
    instruments = _serve(measures, given.metrics_channel)
    parentage.go_on_without_parent()
    try:
        store = ZooKeeperStore(given.zk, given.session_seconds)
        cache = class_archive.cache_of(given.data)
        options = class_archive.java_options(cache)
        session = spark.start(given.data / "collector", more_java_options=options)
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2

    def give_up(why: str) -> None:
        logging.error("%s; this process ends, and the node starts it anew", why)
        os._exit(1)

    def follow() -> None:
        spark.wait_for_end(session)
        give_up("Spark's JVM has ended")

    threading.Thread(target=follow, name="jvm", daemon=True).start()
    archiving = threading.Timer(
        class_archive.BACKGROUND_AFTER_SECONDS, class_archive.make_in_background, [cache]
    )
    archiving.daemon = True
    archiving.start()
    measures.spark_runs = True
    if instruments is not None:
        instruments.page.add(store.readings)
        instruments.page.add_process("flumeng_spark", spark.pid(session))
    watcher, probes = PositionWatcher(Addresses(store)), Probes()
    Liveness(parent.send, [lambda: spark.ask(session), measures.health.turned]).start()

    def build(assignment: Assignment) -> SparkPipeline:
        return SparkPipeline(session, parse_flow(assignment.spec))

    slots = max(LEAST_SLOTS, session.sparkContext.defaultParallelism)
    Worker(
        parent,
        store,
        engine=SparkEngine(session),
        slots=slots,
        build=build,
        positions=lambda wake: WatchedJournals(watcher, probes, wake),
        on_stuck=give_up,
        measures=measures,
    ).run()
    store.close()
    spark.let_go(session)
    return 0


def _serve(measures: Measures, descriptor: int | None) -> Instruments | None:
    """Tell the node how it goes from now on, while Spark starts."""
    if descriptor is None:
        return None
    from flumeng.metrics import serving  # noqa: PLC0415  # only then it costs memory

    return serving.serve(COLLECT, measures.health, measures.readings, descriptor=descriptor)


code = main()
sys.stderr.flush()
os._exit(code)  # Spark's own threads and the JVM end with the process; nothing waits for them.
