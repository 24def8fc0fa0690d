"""What a flow does with a batch: read it, its filters in order, then each of its sinks.

Made from the flow's text each time a task is taken; filters and sinks come from the registry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from flumeng.collector import spark
from flumeng.collector.prepared import PreparedBatches
from flumeng.collector.ranges import split
from flumeng.collector.units import read_rows
from flumeng.collector.work import BatchFailedError, Intent, Work
from flumeng.errors import FlumengError, UnavailableError, UserError
from flumeng.filters import Filter, identity
from flumeng.filters.lazy_batch import (
    BRANCH_SCHEMA,
    Branches,
    Fused,
    LargeRowsError,
    LazyBatch,
    Parameter,
    Stage,
)
from flumeng.filters.refreshed_table import RefreshedTable
from flumeng.inputs import Range, Split, UnreadableError
from flumeng.inputs.reading import Reader, ReadSplits
from flumeng.sinks import Attempt, BatchTooWideError, Row, Sink, TaskRevision, Written, dead_letters
from flumeng.sinks.dead_letters import DeadLetters, RefusedError
from flumeng.spec import FlowSpec, registry
from flumeng.spec.sinks import decided

SPLITS_PER_CORE = 1
LEAST_EVENTS_IN_SPLIT = 20_000
_prepared = PreparedBatches()
_RAISED = re.compile(r"^(?:: )?([\w.]+(?:Error|Exception))(?:: (.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """A batch as far as the last stage of ``sinks``; of several it yields BRANCH_SCHEMA."""

    batch: LazyBatch
    sinks: tuple[int, ...]

    def rows(self, found: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
        """What each of its sinks has yielded, out of what the batch has."""
        if len(self.sinks) == 1:
            yield self.sinks[0], list(found)
            return
        for row in found:
            yield self.sinks[row["branch"]], list(read_rows(row["rows"]))


@dataclass(frozen=True)
class Plan:
    """What is to be run so that each event is read and filtered once. ``splits`` is what each Spark
    task reads, ``cached`` what several runs have in common."""

    splits: tuple[Split, ...]
    runs: tuple[Run, ...]
    cached: LazyBatch | None = None

    @property
    def preparable(self) -> bool:
        """Whether another batch may run by the same plan: what Spark keeps of a DataFrame, for us
        or for a user's function, it finds again by the plan, whatever events it was made of."""
        return self.cached is None and all(run.batch.action is None for run in self.runs)

    def release(self) -> None:
        """Nothing of it runs any more."""
        if self.cached is not None:
            self.cached.release()


class SparkPipeline:
    """``shareable``: no stage of it is Spark SQL."""

    def __init__(
        self, session: SparkSession, spec: FlowSpec, task: TaskRevision, reader: Reader
    ) -> None:
        """``reader`` is what executors read with. Raises what ``plan`` raises: a flow that does not
        fit together is noticed here."""
        self.spec = spec
        self._spark = session
        self._reader = reader
        self.task = task
        self._filters: list[Filter] = [
            registry.get("filter", part.name).implementation_class()(part.options)
            for part in spec.filters
        ]
        self._sinks: list[Sink] = [
            registry.get("sink", part.name).implementation_class()(part.options, task)
            for part in spec.all_sinks
        ]
        self._by_number = [decided(part.options, spec.delivery) for part in spec.all_sinks]
        self._dead_letters = self._sinks[-1] if spec.dead_letters is not None else None
        self._identified = any(step.identified for step in self._filters) or any(
            sink.identified for sink in self._sinks
        )
        self.roots = tuple(sorted({sink.root for sink in self._sinks if sink.root}))
        self._key = object()
        self._prepares = self._large_rows = False
        tried = self._plan(self._read(((),), {}), ((),), Work.trial(self))
        self.shareable = all(run.batch.all_arrow is not None for run in tried.runs)
        self._prepares = not self.shareable and tried.preparable
        tried.release()

    @property
    def trouble(self) -> str:
        return next(filter(None, (table.trouble for table in self._tables)), "")

    @property
    def _tables(self) -> list[RefreshedTable]:
        return [table for step in self._filters for table in step.tables]

    @property
    def intent(self) -> Intent | None:
        by_number = [
            sink for sink, by_number in zip(self._sinks, self._by_number, strict=True) if by_number
        ]
        if not by_number:
            return None
        return "before" if any(sink.writes_at_once for sink in by_number) else "after"

    def splits(self, ranges: Sequence[Range]) -> int:
        return len(split(ranges, self._parts, LEAST_EVENTS_IN_SPLIT))

    def plan(self, work: Work) -> Plan:
        """What is to be run of a batch. Raises UserError, BatchFailedError."""
        for table in self._tables:
            table.refresh()
        if work.splits is None:
            splits = split(work.ranges, self._parts, LEAST_EVENTS_IN_SPLIT)
        else:
            splits = split(work.ranges, work.splits, 1)
        return self._plan(self._read(splits, work.addresses), splits, work)

    def take_large_rows(self) -> None:
        """From now on; it is slower."""
        self._large_rows = True
        self._spark = spark.for_large_rows(self._spark)

    def failed(self) -> None:
        """A batch has failed: the next one is planned anew."""
        _prepared.forget(self._key)

    def written(self, rows: Sequence[Sequence[Row]]) -> list[Written]:
        """What each sink makes of what its last stage has yielded, the one for dead letters last:
        what it has written for the others is among their rows."""
        letters = [letter for of in rows for letter in dead_letters.rows(of)]
        own = [[row for row in of if not dead_letters.is_letters(row)] for of in rows]
        if self._dead_letters is not None:
            own.append(letters)
        written = [sink.written(of) for sink, of in zip(self._sinks, own, strict=True)]
        if self._dead_letters is not None:
            written[-1] = replace(written[-1], dead_letters=written[-1].events)
        return written

    @property
    def _parts(self) -> int:
        return self._spark.sparkContext.defaultParallelism * SPLITS_PER_CORE

    def _read(self, splits: tuple[Split, ...], addresses: Mapping[str, str]) -> ReadSplits:
        return ReadSplits(self._reader, splits, dict(addresses), self._identified)

    def _plan(self, read: ReadSplits, splits: tuple[Split, ...], work: Work) -> Plan:
        try:
            return self._share(self._filtered(read), splits, work)
        except FlumengError:
            raise
        except Exception as error:
            raise one_line(error) from error

    def _filtered(self, read: ReadSplits) -> LazyBatch:
        """What the filters make of the events, which Spark plans once when it may be repeated."""
        splits = len(read.splits)
        if not self._prepares:
            return self._through_filters(read, read.schema, splits)
        versions = [table.version for table in self._tables]
        prepared = _prepared.take(
            self._key,
            splits,
            versions,
            lambda: self._through_filters(Parameter(), read.schema, splits).prepared(),
        )
        return prepared.bind(read)

    def _through_filters(self, first: Stage, schema: pa.Schema, splits: int) -> LazyBatch:
        batch = LazyBatch.of_splits(self._spark, splits, first, schema)
        batch = replace(batch, large_rows=self._large_rows)
        for step in self._filters:
            batch = step.apply(batch)
        return batch

    def _share(self, batch: LazyBatch, splits: tuple[Split, ...], work: Work) -> Plan:
        """The sinks over one computation of ``batch``: those that go on in Arrow are branches of
        one run; when others go on in Spark SQL, Spark keeps the batch for them."""
        staged = self._stage(batch, work)
        cached = None
        if len(staged) > 1 and any(one.after(batch) is None for one in staged):
            cached = batch = batch.cached()
            staged = self._stage(batch, work)
        tails = {number: one.after(batch) for number, one in enumerate(staged)}
        arrow = tuple(number for number, tail in tails.items() if tail is not None)
        runs = [Run(one, (n,)) for n, one in enumerate(staged) if n not in arrow]
        if len(arrow) == 1:
            runs.append(Run(staged[arrow[0]], arrow))
        elif arrow:
            branches = Branches(tuple(Fused(tails[number] or ()) for number in arrow))
            runs.append(Run(batch.arrow(branches, BRANCH_SCHEMA), arrow))
        return Plan(splits, tuple(runs), cached)

    def _stage(self, batch: LazyBatch, work: Work) -> list[LazyBatch]:
        """The batch into each sink but the one for dead letters, which is behind each of them."""
        for number, sink in enumerate(self._sinks):
            self._require_identity(batch, sink, number)
        return [
            sink.stage(
                batch if sink.identified else batch.without_identity(),
                self._attempt(number, work, self._letters(batch, number, work)),
            )
            for number, sink in enumerate(self._sinks[: len(self.spec.sinks)])
        ]

    def _require_identity(self, batch: LazyBatch, sink: Sink, number: int) -> None:
        """Raises UserError when a filter has lost what the sink has to know of each row."""
        name = self.spec.all_sinks[number].name
        if sink.identified and identity.present(batch.schema) != identity.COLUMNS:
            raise UserError(
                f"sql: the sink {name} has to know of which event each row is, and the statement "
                "leaves that out: select *, or e.*, or __journal, __seq and __split too"
            )
        if sink.identified and sink.writes_at_once and self._by_number[number] and batch.shuffled:
            raise UserError(
                f"sql: the sink {name} writes each split of a batch under a number of its own, and "
                "the statement takes rows out of their splits: use delivery at-least-once, or join "
                "only tables of the filter, without groups, windows, UNION and LIMIT"
            )

    def _attempt(self, number: int, work: Work, letters: DeadLetters) -> Attempt:
        sink = self._sinks[number]
        known = sink.writes_at_once and self._by_number[number]
        identity = work.identity if known else None
        return Attempt(work.staging.get(sink.root or "", ""), identity, letters)

    def _letters(self, batch: LazyBatch, number: int, work: Work) -> DeadLetters:
        place = f"sinks[{number}].{self.spec.sinks[number].name}"
        sink = self._dead_letters
        identified = sink is not None and sink.identified
        if sink is None or (identified and not self._sinks[number].identified):
            return DeadLetters(place, self.task.revision)
        schema = dead_letters.schema_of_letters(batch.schema, identified=identified)
        letters = batch.beginning(schema)
        attempt = self._attempt(-1, work, DeadLetters(f"dead_letters of {place}"))
        tail = sink.stage(letters, attempt).all_arrow
        if tail is None:
            raise UserError("dead_letters: a sink that takes DataFrames cannot take dead letters")
        return DeadLetters(place, self.task.revision, tail, identified)


def one_line(error: Exception) -> FlumengError:
    """The cause of a failed Spark job, out of traces of up to three languages. A note at the error
    says whose it is."""
    text = error.getMessage() if isinstance(error, PySparkException) else ""
    text = text or str(error)  # Spark 4.0 has no message for what Python has raised
    raised = [match for match in _RAISED.finditer(text) if match[2]]
    if not raised:
        first = text.strip().splitlines() or [type(error).__name__]
        found: FlumengError = BatchFailedError(first[0])
    else:
        found = of_kind(raised[-1][1].rpartition(".")[2], raised[-1][2])
    if isinstance(found, BatchFailedError) and (notes := getattr(error, "__notes__", [])):
        return BatchFailedError(f"{notes[0]}: {found}")
    return found


def of_kind(kind: str, message: str) -> FlumengError:
    """The error of that name that an executor has raised."""
    if kind in (UnavailableError.__name__, "NotServedError"):
        return UnavailableError(message)
    if kind == UnreadableError.__name__:
        return UnreadableError.parse(message)
    for known in (BatchTooWideError, LargeRowsError, RefusedError, UserError):
        if kind == known.__name__:
            return known(message)
    return BatchFailedError(f"{kind}: {message}")
