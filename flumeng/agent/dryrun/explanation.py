"""Explains what a batch of a flow goes through: the stages in order, where each runs, its columns,
and what each sink promises. Everything comes from the plan of ``planned`` and ``guarantees``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from flumeng.agent.dryrun.cases import read_cases
from flumeng.agent.dryrun.crossing_cost import Cost, measured, spark_plan
from flumeng.agent.dryrun.explaining import shown_branch, shown_filter
from flumeng.agent.dryrun.outcomes import given
from flumeng.agent.dryrun.planned import DEAD_LETTERS, BatchPlan, Engine, Move, NoJavaError, plan
from flumeng.agent.dryrun.received_lines import ReceivedLines
from flumeng.config import FlowSpec, guarantees
from flumeng.config.component import Component, SinkOptions
from flumeng.config.component_summary import summary
from flumeng.config.guarantees import SinkPromise
from flumeng.config.stages import BranchStage, FilterStage, FlowStage, SinkStage, following
from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Direction = Literal["to-jvm", "to-arrow"]
StageKind = Literal["source", "journal", "read", "join", "filter", "branch", "sink", "dead letters"]
Columns = Mapping[str, str]
"""Names of columns with their types in Spark DDL."""
Moves = tuple[Move, ...]
JVM = ("spark", "writer", "function")


@dataclass(frozen=True)
class Crossing:
    """Events move between a Python worker and the JVM, ``times`` times. ``shared``: Spark keeps
    them there for several outputs. ``cost``: None when it was not measured."""

    direction: Direction
    columns: Columns
    times: int
    shared: bool
    cost: Cost | None


@dataclass(frozen=True)
class ExplainedStage:
    """A stage of a flow. ``engine``: where it runs; empty outside of batches and for a branch.
    ``function``: the number of the Python function that it shares with its Arrow neighbours.
    ``crossings``: those before or in it. ``columns``: those after it, None when unknown."""

    kind: StageKind
    text: str
    place: str = ""
    depth: int = 0
    engine: Engine | Literal[""] = ""
    function: int | None = None
    crossings: tuple[Crossing, ...] = ()
    columns: Columns | None = None
    promise: SinkPromise | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """``missing``: why there is no Java, where it would help. ``spark_plans``: Spark's own texts by
    the places of the sinks, when extended. ``parts``: of isolated sinks and branches, which run as
    flows of their own."""

    flow: str
    delivery: str
    durability: str
    batch_seconds: float
    stages: tuple[ExplainedStage, ...]
    missing: str
    spark_plans: Mapping[str, str]
    parts: tuple[Explanation, ...] = ()


def explain_flow(
    spec: FlowSpec,
    session: Callable[[], SparkSession],
    *,
    extended: bool = False,
    events: Sequence[pa.RecordBatch] = (),
) -> Explanation:
    """Explain a flow without its isolated parts. ``extended``: measure crossings with ``events``
    and add Spark's plans. Raises UserError when a collector would refuse the flow."""
    missing = ""
    try:
        if extended:
            session()
    except NoJavaError as error:
        missing, extended = str(error), False
    made = plan(spec, session, ReceivedLines(spec).schema, events if extended else ())
    told = _Explaining(spec, made, measure=extended)
    stages = (*_before(spec), *told.reading(), *told.stages(), *told.dead_letters())
    return Explanation(
        spec.flow,
        spec.delivery,
        spec.durability,
        spec.batch_seconds,
        stages,
        missing or made.missing,
        told.spark_plans() if extended else {},
    )


def case_events(flow_file: Path) -> list[pa.RecordBatch]:
    """Return the events of the cases beside a flow file, if any. Raises as ``read_cases``."""
    path = flow_file.with_suffix(f".test{flow_file.suffix}")
    if not path.exists():
        return []
    (read,) = read_cases([path])
    received = ReceivedLines(read.spec, read.file.source)
    return [batch for case in read.file.cases for batch in given(case, received)]


def _before(spec: FlowSpec) -> Iterator[ExplainedStage]:
    for part in spec.sources:
        notes = [part.options.arrival()]
        if flow := part.options.filtered_by:
            notes.append(f"the filters of flow {flow} run first; they are not shown here")
        where = "in ingest workers" if part in spec.pinned else "ranges, without a journal"
        yield ExplainedStage("source", f"{summary(part)}, {where}", notes=tuple(notes))
    if spec.pinned:
        kafka = spec.journal.kafka
        where = f"durability {spec.durability}" if kafka is None else kafka.location
        yield ExplainedStage("journal", f"journal, {where}", notes=tuple(guarantees.kept(spec)))


class _Explaining:
    def __init__(self, spec: FlowSpec, made: BatchPlan, *, measure: bool) -> None:
        self._spec, self._plan, self._measure = spec, made, measure
        self._functions: dict[int, int] = {}
        self._entered: set[int] = set()
        self._moves: dict[int | None, Moves | None] = {None: made.first.moves}
        places = [*(leaf.place for leaf in spec.leaves), DEAD_LETTERS]
        self._runs = [(run, [places[sink] for sink in run.sinks]) for run in made.runs]
        self._same: dict[int, int] = {}
        for _, ends in self._runs:  # Arrow stages up to several sinks are one function
            keys = [_key(made.notes[place].after.moves[-1]) for place in ends]
            self._same |= dict.fromkeys(keys, keys[0])

    def spark_plans(self) -> dict[str, str]:
        return {
            ", ".join(dict.fromkeys(ends)): spark_plan(run.batch.rows()) for run, ends in self._runs
        }

    def reading(self) -> Iterator[ExplainedStage]:
        (move,), lines = self._plan.first.moves, self._spec.multiline
        columns, function = _columns(move.batch.schema), self._function(move)
        yield ExplainedStage(
            "read", "read the batch", engine="arrow", function=function, columns=columns
        )
        if lines is not None:
            names = ("container", "preset", "starts", "continues")
            rules = [f"{name} {rule}" for name in names if (rule := getattr(lines, name))]
            text = f"join lines: {', '.join(rules)}"
            yield ExplainedStage("join", text, engine="arrow", function=function, columns=columns)

    def stages(self) -> Iterator[ExplainedStage]:
        forks: set[int | None] = set()
        for stage in self._spec.stages:
            before, shared = self._moves[stage.behind], tuple[Crossing, ...]()
            if not isinstance(stage, FilterStage) and stage.behind not in forks:
                forks.add(stage.behind)
                fork = self._fork(stage.behind)
                shared = tuple(self._crossings(before, fork))
                self._moves[stage.behind] = before = fork
            if isinstance(stage, BranchStage):
                self._moves[stage.number] = before
                depth = stage.branch.count("/")
                text = shown_branch(stage.part)
                yield ExplainedStage("branch", text, stage.place, depth, crossings=shared)
            else:
                yield self._stage(stage, before, shared)

    def _stage(
        self, stage: FilterStage | SinkStage, before: Moves | None, shared: tuple[Crossing, ...]
    ) -> ExplainedStage:
        note = self._plan.notes.get(stage.place)
        moves = self._moves[stage.number] = note.after.moves if note else None
        end = moves[-1] if moves else None
        notes, promise = [], None
        if isinstance(stage, SinkStage):
            text, promise = summary(stage.part), guarantees.of_sink(self._spec, stage.part)
            notes = [*_of_sink(self._spec, stage.part)]
        else:
            text = shown_filter(stage.part)
            if note and note.crossed and end and end.engine == "arrow":
                notes.append("its condition runs in Spark SQL")
            if stage.part.name == "python":
                adds = getattr(stage.part.options, "adds", None)
                notes.append(f"declares {adds or 'no columns'}")
        after = note and (note.before if isinstance(stage, SinkStage) else note.after)
        return ExplainedStage(
            "sink" if isinstance(stage, SinkStage) else "filter",
            text,
            stage.place,
            stage.branch.count("/") + bool(stage.branch),
            end.engine if end else "unknown",
            self._function(end) if end else None,
            (*shared, *self._crossings(before, moves, note.crossed if note else ())),
            _columns(after.schema) if after else None,
            promise,
            tuple(notes),
        )

    def dead_letters(self) -> Iterator[ExplainedStage]:
        part = self._spec.dead_letters
        if part is None:
            return
        note = self._plan.notes.get(DEAD_LETTERS)
        refused = "events that sinks refuse, written where they refuse them"
        yield ExplainedStage(
            "dead letters",
            f"dead letters into {summary(part)}",
            DEAD_LETTERS,
            engine="arrow",
            function=self._function(note.after.moves[-1]) if note else None,
            promise=guarantees.of_sink(self._spec, part),
            notes=(f"events that filters cannot process; {refused}" if note else refused,),
        )

    def _fork(self, behind: int | None) -> Moves | None:
        """Return the moves that all outputs behind a stage share; None when not all are known."""
        ways = [self._first(stage) for stage in following(self._spec.stages, behind)]
        known = [way for way in ways if way is not None]
        if len(known) < len(ways):
            return None
        same = takewhile(
            lambda moves: all(it is moves[0] for it in moves), zip(*known, strict=False)
        )
        return tuple(moves[0] for moves in same)

    def _first(self, stage: FlowStage) -> Moves | None:
        while isinstance(stage, BranchStage):
            stage = following(self._spec.stages, stage.number)[0]
        note = self._plan.notes.get(stage.place)
        return note.before.moves if note else None

    def _crossings(
        self, before: Moves | None, moves: Moves | None, crossed: Sequence[LazyBatch] = ()
    ) -> Iterator[Crossing]:
        if before is None or moves is None:
            return
        last = before[-1]
        for move in moves[len(before) :]:
            if last.engine == "spark" and move.engine == "arrow":
                if (function := self._same.get(_key(move), _key(move))) not in self._entered:
                    yield self._crossing("to-arrow", [last.batch])
                self._entered.add(function)
            elif last.engine == "arrow" and move.engine in JVM:
                yield self._crossing("to-jvm", crossed or [last.batch], shared=move.cached)
            last = move

    def _crossing(
        self, direction: Direction, batches: Sequence[LazyBatch], *, shared: bool = False
    ) -> Crossing:
        columns = _columns(pa.unify_schemas([batch.schema for batch in batches]))
        cost = measured(batches[-1], direction) if self._measure else None
        return Crossing(direction, columns, len(batches), shared, cost)

    def _function(self, move: Move) -> int | None:
        if move.engine != "arrow":
            return None
        key = self._same.get(_key(move), _key(move))
        return self._functions.setdefault(key, len(self._functions) + 1)


def _key(move: Move) -> int:
    """Return the identity of the Python function of a move in Arrow, by its first stage."""
    return id(move.batch.pending[0] if move.batch.pending else move)


def _of_sink(spec: FlowSpec, part: Component[SinkOptions]) -> Iterator[str]:
    if part.options.numbered:
        yield guarantees.NUMBERED
    if part.options.members:
        yield guarantees.into_one(spec, part)


def _columns(schema: pa.Schema) -> Columns:
    """Return the columns of events, without those that flumeng hides."""
    return {
        field.name: _type(field.type)
        for field in schema
        if field.name not in identity.COLUMNS and not field.name.startswith("_flumeng")
    }


def _type(kind: pa.DataType) -> str:
    try:
        return ddl.shown(kind)
    except StopIteration:  # not a type of Spark DDL
        return str(kind).upper()
