"""A collector process: waits for Spark's session, then runs the tasks, and watchdogs for both."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from flumeng.agent.collector import class_archive, dead_letter_limits, drivers, liveness
from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.commit import OpenStore
from flumeng.agent.collector.dead_letter_limits import DeadLetterLimits
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.executor_units import Imports
from flumeng.agent.collector.liveness import Application
from flumeng.agent.collector.measures import Measures
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.collector.worker import Worker
from flumeng.agent.collector.worker_daemon import MODULES
from flumeng.agent.node.protocol import Parent
from flumeng.agent.node.running_jobs import RunningJobs
from flumeng.agent.node.sink_paths import require_outside
from flumeng.config import Component, FlowSpec, check_flow, policy
from flumeng.config import spark as spark_settings
from flumeng.config.component import Declared
from flumeng.config.policy import Policy
from flumeng.config.spark import SparkOptions
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.dead_letters.input import DeadLettersInput
from flumeng.connectors.dead_letters.options import INPUT as DEAD_LETTERS
from flumeng.connectors.journals import executor_tokens
from flumeng.connectors.journals.input import Journals
from flumeng.connectors.kafka.input import KafkaInput
from flumeng.connectors.kafka.partition_names import INPUT as KAFKA
from flumeng.connectors.objects.input import ObjectsInput
from flumeng.connectors.polls.input import PollsInput
from flumeng.connectors.ranged.routing import Inputs
from flumeng.connectors.ranged.runtime import installed
from flumeng.connectors.sites.input import SiteInput
from flumeng.connectors.spark.options import Spark
from flumeng.control.commands.connect_limits import require_runnable
from flumeng.control.snapshot.partitions import FLOW, JOURNAL, OBJECTS, POLLS, SITE
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore
from flumeng.journal.serving.action_server import ActionServer
from flumeng.journal.serving.wire import COUNTERS
from flumeng.platform import fail_fast, file_store, secrets
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.file_store import FileStore
from flumeng.platform.security import process
from flumeng.platform.trouble_log import TroubleLog
from zkschema.records import COLLECT

if TYPE_CHECKING:
    from flumeng.platform.metrics.instruments import Instruments

log = logging.getLogger(__name__)

LEAST_SLOTS = 2
WARM_LOOK_SECONDS = 10.0


def run(
    parent: Parent, starting: Future[SparkSession], given: argparse.Namespace, cache: Path
) -> int:
    """Run the collector until the node stops it or dies; return the exit code, 2 if it cannot
    start. ``starting`` gives Spark's session, or raises the error of its start."""
    running_jobs = RunningJobs(given.data)
    process.serve_as("collector")
    measures = Measures()
    instruments = _serve(measures, given.metrics_channel)
    try:
        allowed = policy.load(given.policy)
        secrets.use(allowed.secrets)
        admitted = executor_tokens.of_process()
        store = ZooKeeperStore(given.zk, given.session_seconds, roles=["collector"])
        Imports(tuple(MODULES)).run()  # pipelines use them here too
        session = starting.result()
    except (UnavailableError, UserError) as problem:
        print(problem, file=sys.stderr)
        return 2

    def give_up(why: str) -> None:
        logging.error("%s; this collector ends, and the node restarts it", why)
        os._exit(1)

    driver = drivers.of(session)
    fail_fast.start("driver", lambda: driver.follow(give_up))
    options = spark_settings.read(spark_settings.supported(given.spark))
    application = Application(driver, options, lambda: measures.jobs()[0], running_jobs)
    fail_fast.start("application", lambda: give_up(application.follow()))
    pid = driver.pid
    if pid is not None:
        class_archive.make_later(cache)
    measures.spark_runs = True
    if instruments is not None:
        instruments.page.add(store.readings)
        if pid is not None:
            instruments.page.add_process("flumeng_spark", pid)
    journals = Journals(store, admitted)
    inputs = Inputs(
        {
            JOURNAL: journals,
            FLOW: journals,
            SITE: SiteInput(store),
            KAFKA: KafkaInput(),
            DEAD_LETTERS: DeadLettersInput(),
            OBJECTS: ObjectsInput(store),
            POLLS: PollsInput(store, session),
        },
        installed,
    )
    probes_of_life: list[Callable[[], object]] = [driver.ask]
    report = partial(liveness.report, parent.send, probes_of_life, application.held)
    threading.Thread(target=report, name="liveness", daemon=True).start()

    limits = DeadLetterLimits(store, measures)
    fail_fast.every(dead_letter_limits.LOOK_SECONDS, limits.turn, "letter-limits")

    def build(assignment: Assignment) -> SparkPipeline:
        spec = check_flow(assignment.spec)
        require_allowed(spec, allowed, options, given.data)
        task = TaskRevision(assignment.flow, assignment.task, assignment.revision)
        pipeline = SparkPipeline(session, spec, task, inputs.reader(spec, assignment.filters))
        limits.watch(pipeline)
        return pipeline

    asked = _tell(measures, given.host, given.port)
    slots = max(LEAST_SLOTS, options.cores or driver.parallelism)
    worker = Worker(
        parent,
        store,
        # On a cluster it would hold executors, which Spark else gives back.
        engine=_warmed(SparkEngine(session), stays_warm=given.warm and options.local),
        slots=slots,
        build=build,
        positions=inputs.positions,
        on_stuck=give_up,
        open_store=bounded(allowed),
        running_jobs=running_jobs,
        measures=measures,
        spark_ui=driver.ui_address,
        address=asked.address if asked else "",
    )
    probes_of_life += [worker.require_turning, measures.health.turned]
    worker.run()
    store.close()
    driver.let_go()
    return 0


def _warmed(engine: SparkEngine, *, stays_warm: bool) -> SparkEngine:
    """Return ``engine``, which a thread warms up while tasks are claimed, and keeps warm if it
    ``stays_warm``. A failure only costs the next batch time, and is logged once."""
    trouble = TroubleLog(log)

    def run() -> None:
        while True:
            try:
                engine.stay_warm()
                trouble.end("Spark is warm again")
            except Exception as error:
                trouble.log(logging.WARNING, "Spark cannot be warmed up: %s", error)
            if not stays_warm:
                return
            time.sleep(WARM_LOOK_SECONDS)

    threading.Thread(target=run, name="warm-up", daemon=True).start()
    return engine


def require_allowed(spec: FlowSpec, allowed: Policy, options: SparkOptions, data: Path) -> None:
    """Raise UserError for a part of a flow that the policy forbids, that writes below ``data``, or
    that needs a directory or catalog which this Spark session lacks."""
    require_runnable(options, spec)
    for part in (*spec.partitioned, *spec.all_filters, *spec.targets):
        allowed.require(part)
        require_outside(data, part)
        require_catalog(options, part)


def require_catalog(options: SparkOptions, part: Component[Declared]) -> None:
    """Raise UserError when ``part`` uses a table catalog that the session does not have."""
    catalog = part.options.catalog if isinstance(part.options, Spark) else None
    setting = f"{spark_settings.CATALOG}{catalog}"
    if catalog is not None and setting not in options.conf:
        raise UserError(
            f"{part.name}: this session has no catalog {catalog} of its own: set "
            f"{setting} in spark.conf, and allow it in spark.conf of the node's policy file"
        )


def bounded(allowed: Policy) -> OpenStore:
    """Return an ``open_store`` that enforces the policy, also for commit records of other nodes."""

    def open_store(uri: str) -> tuple[FileStore, str]:
        allowed.require_output(uri)
        return file_store.open_store(uri)

    return open_store


def _tell(measures: Measures, host: str, port: int) -> ActionServer | None:
    try:
        answers = {COUNTERS: lambda _: measures.tasks.rows()}
        return ActionServer(host, answers, port, keystore=process.keystore())
    except UserError as problem:
        logging.warning("the collector cannot serve the event counts of its tasks: %s", problem)
        return None


def _serve(measures: Measures, descriptor: int | None) -> Instruments | None:
    if descriptor is None:
        return None
    from flumeng.platform.metrics import endpoint  # noqa: PLC0415  # only then it costs memory

    return endpoint.serve(COLLECT, measures.health, measures.readings, descriptor=descriptor)
