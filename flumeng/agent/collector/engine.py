"""Runs batches on Spark: as DataFrames of their own when SQL is involved, else as units of Arrow
stages. Units of several batches share a job: each of its tasks runs a share of them."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from flumeng.agent.collector import drivers, executor_units
from flumeng.agent.collector.batch import Pipeline, Work
from flumeng.agent.collector.executor_units import Imports, Result, RunShares, Share, Unit
from flumeng.agent.collector.outcome import (
    CutShortError,
    HungError,
    Outcome,
    SinkUnavailableError,
    of_kind,
    of_sink,
    one_line,
    places_of,
)
from flumeng.agent.collector.output_plans import Run
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.collector.ranges import spread
from flumeng.agent.collector.sealed_stage import Pickled
from flumeng.agent.collector.worker_daemon import MODULES
from flumeng.connectors.api.sink import Row, Written
from flumeng.connectors.ranged.reports import Reports
from flumeng.events.lazy_batch import LargeRowsError
from flumeng.platform.errors import FlumengError

WARM_SECONDS = 45.0
"""Idle Python workers end after 60 s."""
FIRST_WARM_UP_SECONDS = 10.0
"""Longest wait of a batch for a first warm-up under way."""
IDLE_WORKERS = 2
"""Python workers without tasks, of about 60 MB each; a small batch needs no more."""
NAMED = 3


class SparkEngine:
    """An ``Engine`` for batches of ``SparkPipeline``."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._driver = drivers.of(spark)
        self._warm_modules: frozenset[str] = frozenset()
        self._warm_workers = 0
        self._warm_until = 0.0
        self._warming = threading.Lock()

    def write(self, works: Sequence[Work], job: str, slot: str) -> list[Outcome]:
        if not self._warm_modules and self._warming.acquire(timeout=FIRST_WARM_UP_SECONDS):
            self._warming.release()  # its Python workers are ready sooner than another one
        try:
            with self._driver.job(job, describe(works), slot):
                if works[0].pipeline.shareable:
                    return self._write_units(works)
                (work,) = works
                return [_write_frames(_pipeline(work), work, job)]
        except FlumengError:
            raise
        except Exception as error:
            raise one_line(error) from error
        finally:
            self._warm_until = time.monotonic() + WARM_SECONDS

    def cancel(self, job: str) -> None:
        self._driver.cancel(job)

    def warm_up(self, pipeline: Pipeline) -> None:
        """Keep Python workers running, with ``pipeline``'s modules imported."""
        assert isinstance(pipeline, SparkPipeline)
        self._warm(pipeline.modules, self._driver.parallelism)

    def stay_warm(self) -> None:
        """Do as ``warm_up`` without a pipeline, in few Python workers; the first time in one, since
        a batch may wait. Raises as ``write``."""
        workers = IDLE_WORKERS if self._warm_modules else 1
        self._warm(MODULES, min(workers, self._driver.parallelism))

    def _warm(self, modules: frozenset[str], workers: int) -> None:
        """Run an empty job, unless one ran recently in as many workers with all ``modules``. A
        session's first job takes two seconds, importing modules one more."""
        with self._warming:
            ready = modules <= self._warm_modules and workers <= self._warm_workers
            if ready and time.monotonic() < self._warm_until:
                return
            every = self._warm_modules | modules
            try:
                with self._driver.job("warm-up", "keeps Python workers ready"):
                    self._run([Imports(tuple(sorted(every)))] * workers)
            except Exception as error:
                raise one_line(error) from error
            self._warm_modules, self._warm_workers = every, workers
            self._warm_until = time.monotonic() + WARM_SECONDS

    def _write_units(self, works: Sequence[Work]) -> list[Outcome]:
        parts = [_Part.of(work) for work in works]
        chosen: list[tuple[_Part, int, Unit]] = []
        weights = []
        for part in parts:
            for run, stage in enumerate(part.stages):
                for split, events in enumerate(part.events):
                    chosen.append((part, run, Unit(len(chosen), split, stage)))
                    weights.append(events + 1)
        tasks = 1 if works[0].apart else self._driver.unit_tasks
        shares = spread(weights, tasks)
        given = tuple(tuple(chosen[number][2] for number in share) for share in shares)
        broadcasts = any(part.broadcasts for part in parts)
        for result in self._run([Share(it, len(works) > 1) for it in given], broadcasts):
            part, run, _ = chosen[result.unit]
            part.take(run, result)
        return [part.outcome() for part in parts]

    def _run(self, shares: Sequence[Share | Imports], broadcasts: bool = False) -> list[Result]:
        if not shares:
            return []
        stage = RunShares(tuple(pickle.dumps(share) for share in shares))
        return [Result(*row) for row in self._driver.run(stage, len(shares), broadcasts=broadcasts)]


def _write_frames(pipeline: SparkPipeline, work: Work, job: str) -> list[Written]:
    try:
        return _attempt(pipeline, work, job)
    except Exception as error:
        pipeline.failed()
        if not isinstance(one_line(error), LargeRowsError):
            raise
    pipeline.take_large_rows()
    return _attempt(pipeline, work, job)


def _attempt(pipeline: SparkPipeline, work: Work, job: str) -> list[Written]:
    plan = pipeline.plan(work)
    rows: list[list[Row]] = [[] for _ in work.pipeline.spec.all_sinks]
    places = places_of(pipeline.spec)
    try:
        for run in plan.runs:
            for sink, of in run.rows(_collected(run, job, [places[it] for it in run.sinks])):
                rows[sink] += of
        made = Reports() if plan.reports is None else plan.reports.take(job)
    finally:
        plan.release(job)
    pipeline.reports.add(made)
    return pipeline.written(rows)


def _collected(run: Run, job: str, places: Sequence[str]) -> list[Row]:
    try:
        return [row.asDict() for row in run.batch.collect(job)]
    except Exception as error:
        cause = of_sink(one_line(error), places)
        if isinstance(cause, SinkUnavailableError):
            raise cause from error
        raise


class _Part:
    """One batch of a job: a pickled stage for each run, whether these have broadcast variables, and
    the number of events of each split."""

    def __init__(self, work: Work) -> None:
        self._pipeline = _pipeline(work)
        self.stages: list[bytes] = []
        self.broadcasts = False
        self.events: list[int] = []
        self._runs: tuple[Run, ...] = ()
        self._rows: list[list[Row]] = []
        self._reports = Reports()
        self._error: Exception | None = None

    @classmethod
    def of(cls, work: Work) -> _Part:
        part = cls(work)
        try:
            plan = part._pipeline.plan(work)
            part._runs = plan.runs
            pickled = [Pickled.of(run.batch.all_arrow) for run in plan.runs]
            part.stages = [it.stage for it in pickled]
            part.broadcasts = any(it.broadcasts for it in pickled)
            part.events = [work.scale.total(split) for split in plan.splits]
            part._rows = [[] for _ in work.pipeline.spec.all_sinks]
        except Exception as error:
            part._error = error
        return part

    def take(self, run: int, result: Result) -> None:
        if result.kind == executor_units.ROWS:
            for sink, rows in self._runs[run].rows(executor_units.read_rows(result.content)):
                self._rows[sink] += rows
            self._reports.add(pickle.loads(result.reports))  # it comes from our own executor
        elif self._error is None:
            places = places_of(self._pipeline.spec)
            sinks = {number: places[number] for number in self._runs[run].sinks}
            self._error = _error(result, sinks)

    def outcome(self) -> Outcome:
        if self._error is not None:
            return self._error
        self._pipeline.reports.add(self._reports)
        try:
            return self._pipeline.written(self._rows)
        except Exception as error:
            return error


def describe(works: Sequence[Work]) -> str:
    tasks = [f"{work.pipeline.spec.flow}/{_pipeline(work).task.task}" for work in works]
    if len(works) == 1:
        return f"{tasks[0]}: {_ranges_text(works[0])}"
    events = sum(work.events for work in works)
    flows = len({work.pipeline.spec.flow for work in works})
    more = [f"{len(tasks) - NAMED} more"] if len(tasks) > NAMED else []
    named = ", ".join([*tasks[:NAMED], *more])
    return f"{len(works)} batches of {flows} flows, {events} events: {named}"


def _ranges_text(work: Work) -> str:
    ranges = work.ranges
    if not ranges:
        return "0 events"
    first = f"{ranges[0].partition} {ranges[0].start}-{ranges[0].end}"
    more = f" and {len(ranges) - 1} more" if len(ranges) > 1 else ""
    return f"{work.events} events, {first}{more}"


def _error(result: Result, sinks: Mapping[int, str]) -> Exception:
    content = result.content.decode()
    if result.kind == executor_units.HUNG:
        return HungError.after(executor_units.LIMIT_SECONDS, list(sinks.values()), content)
    if result.kind == executor_units.LEFT:
        return CutShortError("other batches of its Spark task have hung")
    name, text, number = content.split("\n")
    return of_sink(of_kind(name, text), [sinks[int(number)]] if number else [*sinks.values()])


def _pipeline(work: Work) -> SparkPipeline:
    assert isinstance(work.pipeline, SparkPipeline)
    return work.pipeline
