"""The collector process, a Spark driver: a node starts it with ``python -m
flumeng.agent.collector`` and exchanges messages with it over stdin and stdout."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession

from flumeng.agent.collector import class_archive, slow_start, spark
from flumeng.agent.collector.job import APART_SLOTS
from flumeng.agent.node.protocol import Message, Parent
from flumeng.config.spark import SparkOptions
from flumeng.platform import logs, processes, secrets
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.scrubbing import scrub

AGAIN_SECONDS = 5.0
parser = argparse.ArgumentParser(prog="flumeng.agent.collector", description=__doc__)
parser.add_argument("--zk", required=True, help="host:port[,host:port]/chroot")
parser.add_argument("--node", required=True, help="the node that started this process")
parser.add_argument("--data", required=True, type=Path, help="the node's data directory")
parser.add_argument("--policy", type=Path, help="the file that limits flows on this node")
parser.add_argument("--host", default=spark.LOOPBACK, help="the address for executors")
parser.add_argument("--port", type=int, default=0, help="at that host; 0 for a free one")
parser.add_argument("--spark", type=json.loads, default={}, help="Spark's settings, as JSON")
parser.add_argument("--warm", action="store_true", help="keep Spark's Python workers running")
parser.add_argument("--session-seconds", type=float, default=10.0)
parser.add_argument("--metrics-channel", type=int, help="the descriptor of metrics requests")


def main() -> int:
    given = parser.parse_args()
    logs.to_stderr("collector")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    parent = Parent.take_stdio()
    processes.go_on_without_parent()
    starting: Future[SparkSession] = Future()
    cache = class_archive.cache_of(given.data)
    start = partial(_start, given, cache, parent.send, starting)
    Thread(target=start, name="start", daemon=True).start()
    Thread(target=slow_start.report, args=(parent.send, starting), daemon=True).start()
    from flumeng.agent.collector import daemon  # noqa: PLC0415  # loads for as long as Spark's launcher

    return daemon.run(parent, starting, given, cache)


def _start(
    given: argparse.Namespace,
    cache: Path,
    send: Callable[[Message], None],
    starting: Future[SparkSession],
) -> None:
    """Start Spark and resolve ``starting`` with its session or the error. With given settings,
    retry while one is refused or Spark does not start."""

    def held(why: str) -> None:
        send({"type": "alive", "held": scrub(why)})

    try:
        while True:
            try:
                started = _session(_options(given), given, cache, held)
            except (UnavailableError, UserError) as error:
                if not given.spark:
                    raise
                held(str(error))
                time.sleep(AGAIN_SECONDS)
            else:
                starting.set_result(started)
                return
    except BaseException as error:
        starting.set_exception(error)


def _session(
    options: SparkOptions, given: argparse.Namespace, cache: Path, held: Callable[[str], None]
) -> SparkSession:
    directory = given.data / "collector"
    if options.connect:
        from flumeng.agent.collector import connect  # noqa: PLC0415  only then it costs time

        return connect.start(directory, options, held)
    return spark.start(
        directory,
        options,
        host=given.host,
        more_java_options=class_archive.java_options(cache),
        spare_tasks=APART_SLOTS,
        waits=held,
    )


def _options(given: argparse.Namespace) -> SparkOptions:
    """Return Spark's settings. Raises UserError where the policy file, reread now, refuses one."""
    if not given.spark:
        return spark.ON_THIS_HOST
    from flumeng.config import policy  # noqa: PLC0415  # only then it costs time
    from flumeng.config import spark as settings  # noqa: PLC0415

    options = settings.read(settings.supported(given.spark))
    for key in given.spark.keys() - settings.KEYS.keys():
        logging.warning("spark.%s is a setting of a newer flumeng and is ignored", key)
    allowed = policy.load(given.policy)
    allowed.spark.require(options)
    secrets.use(allowed.secrets)
    return options


code = main()
sys.stderr.flush()
os._exit(code)  # Spark's own threads and the JVM end with the process; nothing waits for them.
