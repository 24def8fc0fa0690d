"""What a flow does with a batch: fetch, its filters in order, then each of its sinks.

Made from the flow's text each time a task is taken; filters and sinks come from the registry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from flumeng.collector.fetch import Fetch, UnreadableError
from flumeng.collector.ranges import Range, split
from flumeng.collector.work import BatchFailedError, Outcome, Work
from flumeng.errors import FlumengError, UnavailableError
from flumeng.filters import Filter
from flumeng.filters.lazy_batch import LazyBatch
from flumeng.journal.schema import READ_SCHEMA
from flumeng.sinks import BatchTooWideError, Sink, Written
from flumeng.spec import FlowSpec, registry

SPLITS_PER_CORE = 1
LEAST_EVENTS_IN_SPLIT = 20_000
_RAISED = re.compile(r"^([\w.]+(?:Error|Exception))(?:: (.*))?$", re.MULTILINE)


class SparkPipeline:
    shareable = False

    def __init__(self, spark: SparkSession, spec: FlowSpec) -> None:
        self.spec = spec
        self._spark = spark
        self._filters: list[Filter] = [
            registry.get("filter", part.name).implementation_class()(part.options)
            for part in spec.filters
        ]
        self._sinks: list[Sink] = [
            registry.get("sink", part.name).implementation_class()(part.options)
            for part in spec.sinks
        ]
        self.roots = tuple(sorted({sink.root for sink in self._sinks if sink.root}))

    def write(
        self,
        ranges: Sequence[Range],
        addresses: Mapping[str, str],
        staging: Mapping[str, str],
    ) -> list[Written]:
        """Run a batch through all sinks; ``staging`` gives each root's directory.

        Raises BatchTooWideError, UnavailableError, UnreadableError, BatchFailedError.
        """
        parts = self._spark.sparkContext.defaultParallelism * SPLITS_PER_CORE
        splits = split(ranges, parts, LEAST_EVENTS_IN_SPLIT)
        try:
            fetch = Fetch(splits, dict(addresses))
            batch = LazyBatch.of_splits(self._spark, len(splits), fetch, READ_SCHEMA)
            for step in self._filters:
                batch = step.apply(batch)
            return [sink.write(batch, staging.get(sink.root or "", "")) for sink in self._sinks]
        except FlumengError:
            raise
        except Exception as error:
            raise _one_line(error) from error


class Spark:
    """Runs batches as Spark jobs; see ``Engine``."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def write(self, works: Sequence[Work], job: str, slot: str) -> list[Outcome]:
        self._context.setJobGroup(job, job, interruptOnCancel=True)
        self._context.setLocalProperty("spark.scheduler.pool", slot)
        (work,) = works
        assert isinstance(work.pipeline, SparkPipeline)
        return [work.pipeline.write(work.ranges, work.addresses, work.staging)]

    def cancel(self, job: str) -> None:
        self._context.cancelJobGroup(job)


def _one_line(error: Exception) -> FlumengError:
    """The cause of a failed Spark job, out of traces of up to three languages."""
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    raised = [match for match in _RAISED.finditer(text or "") if match[2]]
    if not raised:
        first = (text or "").strip().splitlines() or [type(error).__name__]
        return BatchFailedError(first[0])
    kind, message = raised[-1][1].rpartition(".")[2], raised[-1][2]
    if kind in (UnavailableError.__name__, "NotServedError"):
        return UnavailableError(message)
    if kind == UnreadableError.__name__:
        return UnreadableError.parse(message)
    if kind == BatchTooWideError.__name__:
        return BatchTooWideError(message)
    return BatchFailedError(f"{kind}: {message}")
