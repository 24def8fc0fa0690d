"""A flow's pipeline on Spark: read, filters, then sinks and branches; built for a claim."""

from __future__ import annotations

import io
import pickle
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from flumeng.agent.collector import drivers
from flumeng.agent.collector.batch import Filtered, Intent, Work
from flumeng.agent.collector.batch_times import BatchTimes
from flumeng.agent.collector.executor_units import refuse_copies
from flumeng.agent.collector.gaps import NO_COLUMNS, PLACE, RefuseGaps
from flumeng.agent.collector.lines import JoinedRange
from flumeng.agent.collector.lines.reader import JoinLines
from flumeng.agent.collector.lines.rules import Rules
from flumeng.agent.collector.outcome import one_line, places_of, written_to
from flumeng.agent.collector.output_plans import Leaf, Plan, Run
from flumeng.agent.collector.plan_cache import PlanCache
from flumeng.agent.collector.ranges import Scale, share_out, split
from flumeng.agent.collector.spark_reports import StageReports
from flumeng.agent.collector.stages import Outputs, Stages
from flumeng.config import FlowSpec, registry
from flumeng.config.stages import FilterStage, leading_to
from flumeng.connectors.api import dead_letters
from flumeng.connectors.api.dead_letters import DeadLetters, ToDeadLetters
from flumeng.connectors.api.ranged import Range, Split
from flumeng.connectors.api.sink import Attempt, Row, Sink, TaskRevision, Written
from flumeng.connectors.groups.sink import GroupSink
from flumeng.connectors.ranged.reading import Admitting, Filtering, Reader, ReadSplits
from flumeng.connectors.ranged.reports import Reports
from flumeng.connectors.ranged.sizes import EventSizes
from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch, Parameter, Stage
from flumeng.filters import on_error
from flumeng.filters.segments import segments_of
from flumeng.platform.errors import FlumengError, UserError

SPLITS_PER_CORE = 1
LEAST_EVENTS_IN_SPLIT = 20_000
_plans = PlanCache()


class SparkPipeline:
    """See ``Pipeline``. ``modules``: the Python modules that executors import for this pipeline.
    ``reports``: what the stages of its successful runs reported."""

    def __init__(
        self,
        session: SparkSession,
        spec: FlowSpec,
        task: TaskRevision,
        reader: Reader,
        plans: PlanCache = _plans,
    ) -> None:
        """Build and try the pipeline; ``reader`` runs on executors. Raises as ``plan``."""
        self.spec = spec
        self._spark, self._plans = session, plans
        self._driver = drivers.of(session)
        self.task = task
        self.reports = Reports()
        self._stages = Stages(segments_of(spec.stages), self.reports)
        self._sinks: list[Sink] = [
            registry.get("sink", part.name).implementation_class()(part.options, task)
            for part in spec.all_sinks
        ]
        self._by_number = [part.options.decided(spec.delivery) for part in spec.all_sinks]
        self._dead_letters = self._sinks[-1] if spec.dead_letters is not None else None
        self._identified = any(step.identified for step in self._stages.steps) or any(
            sink.identified for sink in self._sinks
        )
        self.roots = tuple(sorted({root for sink in self._sinks for root in sink.roots}))
        groups = [sink for sink in self._sinks if isinstance(sink, GroupSink)]
        needed = {root for sink in self._sinks if sink not in groups for root in sink.roots}
        self.spare_roots = frozenset(self.roots) - needed
        self._groups = groups
        self._key = object()
        self._leaves = spec.leaves
        weighs = spec.batch.bytes is not None or spec.weighed
        self._sizes = EventSizes(self.reports) if weighs else None
        self._places = places_of(spec)[: len(self._sinks)]
        self._times = BatchTimes(self.reports, self._places)
        measured = reader if self._sizes is None else self._sizes.measured(reader)
        self._admitting = reader if isinstance(reader, Admitting) else None
        self._filtering = reader if isinstance(reader, Filtering) else None
        self._prepared_with: Hashable = None
        self._reader: Reader = measured
        if spec.multiline is not None:
            rules = Rules.of(spec.multiline)
            rules.check()
            self._reader = JoinLines(measured, rules)
        self._prepares = self._large_rows = False
        read = self._read(((),), {})
        tried = self._plan(read, ((),), Work.trial(self))
        stages = [run.batch.all_arrow for run in tried.runs]
        self.shareable = all(stage is not None for stage in stages)
        self.modules = modules_of(stages if self.shareable else read) | reader.modules
        self._prepares = self._driver.prepares and not self.shareable and tried.preparable
        tried.release()

    @property
    def filters(self) -> str:
        return self._filtering.filters if self._filtering else ""

    @property
    def outdated(self) -> bool:
        return self._filtering is not None and self._filtering.outdated

    @property
    def trouble(self) -> str:
        groups = (group.trouble for group in self._groups)
        return next(filter(None, (*(table.trouble for table in self._stages.tables), *groups)), "")

    @property
    def intent(self) -> Intent | None:
        by_number = [
            sink for sink, by_number in zip(self._sinks, self._by_number, strict=True) if by_number
        ]
        if not by_number:
            return None
        return "before" if any(sink.writes_at_once for sink in by_number) else "after"

    def event_bytes(self) -> float | None:
        return None if self._sizes is None else self._sizes.take()

    def filtered(self) -> Filtered:
        made = replace(self._stages.filtered(), times=self._times.take())
        if self._sizes is None or not self.spec.weighed:
            return made
        return replace(made, read=self._sizes.take_events())

    def splits(self, ranges: Sequence[Range], scale: Scale) -> int:
        return len(self._cut(ranges, self._parts, LEAST_EVENTS_IN_SPLIT, scale))

    def joined(self, ranges: Sequence[Range]) -> dict[str, JoinedRange]:
        notes = {piece: self.reports.notes.get(piece.partition) for piece in ranges}
        return {
            piece.partition: note
            for piece, note in notes.items()
            if isinstance(note, JoinedRange) and note.piece == piece
        }

    def plan(self, work: Work) -> Plan:
        """Return the runs of a batch. Raises UserError, BatchFailedError, UnavailableError."""
        if work.gaps:
            return self._plan_gaps(work)
        for table in self._stages.tables:
            table.refresh()
        if work.splits is None:
            parts = 1 if work.apart else self._parts
            splits = self._cut(work.ranges, parts, LEAST_EVENTS_IN_SPLIT, work.scale)
        else:
            splits = self._cut(work.ranges, work.splits, 1, work.scale)
        return self._plan(self._read(splits, work.addresses), splits, work)

    def _plan_gaps(self, work: Work) -> Plan:
        """Plan a batch that reads nothing; a dead letter per gap is sent before the first sink."""
        first, schema = self._read((), {}), self._reader.schema
        batch = self._stages.behind(LazyBatch.of_splits(self._spark, 1, first, schema))
        letters = replace(self._letters(batch, 0, work), place=PLACE)
        if letters.stage is None:
            return Plan((), ())
        stage = letters.around(RefuseGaps.of(work.gaps, batch.schema), NO_COLUMNS)
        schema = dead_letters.schema_around(NO_COLUMNS)
        return Plan(((),), (Run(LazyBatch.of_splits(self._spark, 1, stage, schema), (0,)),))

    def take_large_rows(self) -> None:
        """Switch permanently to a slower session that takes rows of any size."""
        self._large_rows = True
        self._spark = self._driver.for_large_rows()

    def failed(self) -> None:
        """Evict the cached plan, so that Spark plans the next batch again."""
        self._plans.forget(self._key)

    def written(self, rows: Sequence[Sequence[Row]]) -> list[Written]:
        """Return each sink's result, from the rows of its last stage. The result of a sink for dead
        letters is last; its rows are mixed into those of the other sinks."""
        own = [[row for row in of if not dead_letters.is_dead_letters(row)] for of in rows]
        if self._dead_letters is not None:
            own[-1] += [letter for of in rows for letter in dead_letters.rows(of)]
        written = []
        for path, sink, of in zip(self._places, self._sinks, own, strict=True):
            with written_to(path):
                written.append(sink.written(of))
        if self._dead_letters is not None:
            written[-1] = replace(written[-1], dead_letters=written[-1].events)
        return written

    @property
    def _parts(self) -> int:
        return self._driver.parallelism * SPLITS_PER_CORE

    def _cut(
        self, ranges: Sequence[Range], parts: int, least_events: int, scale: Scale
    ) -> tuple[Split, ...]:
        cut = split if self.spec.multiline is None else share_out
        return cut(ranges, parts, least_events, scale)

    def _read(self, splits: tuple[Split, ...], addresses: Mapping[str, str]) -> ReadSplits:
        if self._admitting is not None:
            addresses = self._admitting.admitted(splits, addresses)
        return ReadSplits(self._reader, splits, dict(addresses), self._identified)

    def _plan(self, read: ReadSplits, splits: tuple[Split, ...], work: Work) -> Plan:
        reports = self._driver.reports()
        try:
            outputs = Outputs(partial(self._to_sink, work), partial(self._to_dead_letters, work))
            filtered = self._filtered(read, reports)
            return Plan.of(splits, self._stages.fork(filtered, outputs), reports)
        except Exception as error:
            reports.release("")
            raise error if isinstance(error, FlumengError) else one_line(error) from error

    def _filtered(self, read: ReadSplits, reports: StageReports) -> LazyBatch:
        """Return the filtered events. Spark analyses a plan that batches can share once."""
        splits = len(read.splits)
        if not self._prepares:
            return self._through_filters(read, read.schema, splits, reports)
        if self._admitting is not None:
            credentials = self._admitting.credentials()
            if credentials != self._prepared_with:
                self._plans.forget(self._key)
            self._prepared_with = credentials
        versions = [table.version for table in self._stages.tables]
        prepared = self._plans.take(
            self._key,
            splits,
            versions,
            lambda: self._through_filters(
                Parameter(partial(ReadSplits, self._reader, identified=self._identified)),
                read.schema,
                splits,
                reports,
            ),
        )
        return prepared.bind(read.splits, read.addresses)

    def _through_filters(
        self, first: Stage, schema: pa.Schema, splits: int, reports: StageReports
    ) -> LazyBatch:
        batch = LazyBatch.of_splits(self._spark, splits, first, schema)
        batch = replace(batch, large_rows=self._large_rows, functions=reports)
        if self.spec.delivery == "at-most-once":
            batch = batch.arrow(refuse_copies, schema)
        return self._stages.through(self._times.noting(batch))

    def _to_sink(self, work: Work, batch: LazyBatch, number: int) -> LazyBatch:
        """Connect a batch to a sink, and the events it refuses to the sink for dead letters."""
        self._require_identity(batch, number)
        if self._dead_letters is not None:
            self._require_identity(batch, len(self._leaves))
        sink = self._sinks[number]
        given = batch if sink.identified else batch.without_identity()
        attempt = self._attempt(number, work, self._letters(batch, number, work))
        return self._times.timed(given, sink.stage(given, attempt), self._places[number])

    def _to_dead_letters(self, work: Work, batch: LazyBatch, path: str) -> Leaf:
        number = len(self._leaves)
        self._require_identity(batch, number)
        sink = self._sinks[number]
        stage = ToDeadLetters(path, self.task.revision, sink.identified, on_error.reasons)
        schema = dead_letters.schema_of_dead_letters(batch.schema, identified=sink.identified)
        attempt = self._attempt(number, work, DeadLetters(f"dead_letters of {path}"))
        return Leaf(number, sink.stage(batch.arrow(stage, schema), attempt))

    def _require_identity(self, batch: LazyBatch, number: int) -> None:
        """Raise UserError when filters drop the events' identity or splits that the sink needs."""
        sink = self._sinks[number]
        name = self.spec.all_sinks[number].name
        if sink.identified and identity.present(batch.schema) != identity.COLUMNS:
            raise UserError(
                f"{self._rows_of(number)}: the sink {name} needs the event of each row: "
                "select *, or e.*, or also __journal, __seq and __split"
            )
        if sink.identified and sink.writes_at_once and self._by_number[number] and batch.shuffled:
            raise UserError(
                f"{self._rows_of(number)}: the sink {name} writes each split of a batch under its "
                "own number, but rows leave their splits here: use delivery at-least-once, or join "
                "only tables of the filter, without groups, windows, UNION, LIMIT and `when`"
            )

    def _rows_of(self, number: int) -> str:
        """Name the SQL statements before a sink: only these create rows."""
        root = self.spec.stages[: len(self.spec.filters)]
        leaf = self._leaves[number] if number < len(self._leaves) else None
        before = root if leaf is None else leading_to(self.spec.stages, leaf)
        places = [
            sql.place for sql in before if isinstance(sql, FilterStage) and sql.part.name == "sql"
        ]
        return " or ".join(places) or "filters"

    def _attempt(self, number: int, work: Work, letters: DeadLetters) -> Attempt:
        sink = self._sinks[number]
        identified = sink.writes_at_once and self._by_number[number]
        identity = work.identity if identified else None
        staging = {root: work.staging[root] for root in sink.roots if root in work.staging}
        once = self.spec.delivery == "exactly-once"
        return Attempt(staging, identity, letters, exactly_once=once)

    def _letters(self, batch: LazyBatch, number: int, work: Work) -> DeadLetters:
        path = self._leaves[number].place
        sink = self._dead_letters
        identified = sink is not None and sink.identified
        if sink is None or (identified and not self._sinks[number].identified):
            return DeadLetters(path, self.task.revision)
        schema = dead_letters.schema_of_dead_letters(batch.schema, identified=identified)
        letters = batch.beginning(schema)
        attempt = self._attempt(-1, work, DeadLetters(f"dead_letters of {path}"))
        tail = sink.stage(letters, attempt).all_arrow
        if tail is None:
            raise UserError("dead_letters: a sink that takes DataFrames cannot take dead letters")
        return DeadLetters(path, self.task.revision, tail, identified)


class _Modules(pickle.Pickler):
    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.modules: set[str] = set()

    def reducer_override(self, part: object) -> Any:
        self.modules.add(getattr(part, "__module__", None) or type(part).__module__)
        return NotImplemented


def modules_of(stage: object) -> frozenset[str]:
    pickler = _Modules()
    pickler.dump(stage)
    return frozenset(pickler.modules)
