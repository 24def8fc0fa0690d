"""Plans a batch of a flow as its collector does, and notes where events cross into the JVM.

The plan is made by the collector's own ``Stages`` and ``Plan``, over batches that note each step.
Nothing runs and no secret is read. Spark starts only when a filter asks for its session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
from pyspark.errors import PySparkException

from flumeng.agent.collector.outcome import one_line
from flumeng.agent.collector.output_plans import Leaf, Plan, Run
from flumeng.agent.collector.stages import Outputs, Stages
from flumeng.agent.dryrun.filter_tree import Given
from flumeng.config import FlowSpec, registry
from flumeng.config.component import Component, FilterOptions, SinkOptions
from flumeng.connectors.api import dead_letters
from flumeng.connectors.api.dead_letters import DeadLetters, ToDeadLetters
from flumeng.connectors.api.sink import Attempt, TaskRevision
from flumeng.connectors.ranged.reports import Reports
from flumeng.events import identity
from flumeng.events.lazy_batch import Action, LazyBatch, Session, Stage
from flumeng.filters import ddl, on_error
from flumeng.filters.contract import Filter, Wrapping
from flumeng.filters.marks import WHEN, Marks
from flumeng.filters.segments import Step, segments_of
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError, UserError
from flumeng.platform.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Engine = Literal["arrow", "spark", "writer", "function", "unknown"]
"""*arrow*: a Python function over Arrow batches. *spark*: Spark SQL in the JVM. *writer*: Spark's
own writer. *function*: a user's function in the driver. *unknown*: only Spark knows."""
DEAD_LETTERS = "dead_letters"


class NoJavaError(UserError):
    """Spark is needed for the plan, and cannot start here."""


def with_java(session: Callable[[], SparkSession]) -> Callable[[], SparkSession]:
    """Return a session that raises NoJavaError where there is no Java to start it."""

    def needed() -> SparkSession:
        try:
            find_java()
        except UserError as error:
            raise NoJavaError(str(error)) from error
        return session()

    return needed


@dataclass(frozen=True)
class Move:
    """A step of the plan. ``batch``: the events after it."""

    engine: Engine
    batch: LazyBatch
    cached: bool = False


@dataclass(frozen=True)
class Planned(LazyBatch):
    """A batch that notes its ``moves``. ``crossed``: batches of Arrow stages handed to the JVM."""

    moves: tuple[Move, ...] = ()
    crossed: list[LazyBatch] = field(default_factory=list, compare=False)

    def arrow(self, stage: Stage, schema: pa.Schema) -> Planned:
        return self._moved("arrow", super().arrow(stage, schema))

    def in_spark(self, rows: Any, *, shuffled: bool) -> Planned:
        return self._moved("spark", super().in_spark(rows, shuffled=shuffled))

    def acted(self, action: Action) -> Planned:
        module = getattr(action, "func", action).__module__
        engine: Engine = "writer" if ".connectors.spark." in module else "function"
        return self._moved(engine, super().acted(action))

    def cached(self) -> Planned:
        """Continue with rows that Spark would cache. Here it caches nothing, and need not start."""
        shared = replace(self, source=cast("Any", self), pending=())
        return replace(shared, moves=(*self.moves, Move("spark", shared, cached=True)))

    def rows(self) -> Any:
        shared: Any = self.source
        if isinstance(shared, Planned):
            noted = len(self.crossed)
            made = replace(self, source=shared.rows())
            del self.crossed[noted:]
            return made.rows()
        if self.pending:
            self.crossed.append(self)
        return super().rows()

    def _moved(self, engine: Engine, made: LazyBatch) -> Planned:
        return replace(cast("Planned", made), moves=(*self.moves, Move(engine, made)))


@dataclass(frozen=True)
class Note:
    """A filter or sink in the plan: the batch ``before`` and ``after`` it. ``crossed``: as in
    ``Planned``, by it alone."""

    before: Planned
    after: Planned
    crossed: tuple[LazyBatch, ...] = ()


@dataclass(frozen=True)
class BatchPlan:
    """``notes``: by the places of filters and sinks, and of dead letters. ``runs``: Spark's jobs.
    Both end early where Java is ``missing``, which is the reason, or empty."""

    first: Planned
    notes: Mapping[str, Note]
    runs: tuple[Run, ...]
    missing: str = ""


def plan(
    spec: FlowSpec, session: Session, schema: pa.Schema, events: Sequence[pa.RecordBatch] = ()
) -> BatchPlan:
    """Plan a batch of ``events`` in ``schema``. Raises UserError when the collector would refuse
    the plan, with the message of Spark for a statement that Spark refuses."""
    with secrets.placeholders():
        return _Planning(spec).plan(session, schema, events)


class _Planning:
    def __init__(self, spec: FlowSpec) -> None:
        self._spec = spec
        self._notes: dict[str, Note] = {}
        self._sinks = [_sink(part, spec.flow) for part in spec.all_sinks]
        self._places = [*(leaf.place for leaf in spec.leaves), DEAD_LETTERS]

    def plan(
        self, session: Session, schema: pa.Schema, events: Sequence[pa.RecordBatch]
    ) -> BatchPlan:
        root = segments_of(self._spec.stages, self._step)
        stages = Stages(root, Reports())
        if any(part.identified for part in (*stages.steps, *self._sinks)):
            events = [identity.identify(batch, 0) for batch in events]
            schema = identity.with_identity(schema)
        read = LazyBatch.of_splits(session, 1, Given(tuple(events)), schema)
        first = Planned(session, 1, None, read.pending, schema, moves=(Move("arrow", read),))
        try:
            outputs = Outputs(self._to_sink, self._to_dead_letters)
            runs = Plan.of(((),), stages.fork(stages.through(first), outputs)).runs
        except NoJavaError as error:
            return BatchPlan(first, self._notes, (), str(error))
        except PySparkException as error:
            raise one_line(error) from error
        return BatchPlan(first, self._notes, runs)

    def _step(self, part: Component[FilterOptions], place: str) -> Step:
        options: Any = part.options
        if part.name == "lookup":  # it would start Spark to read its table
            columns = ddl.columns_of(options.table.schema)
            step = Step(_Adds([it for it in columns if it.name not in options.on], part.when))
        elif part.name == "python":  # its module may be on collecting hosts only
            step = Step(_Adds([*ddl.columns_of(options.adds)] if options.adds else [], part.when))
        else:
            step = Step.of(part, place)
        return replace(step, filter=_Noting(step.filter, partial(self._filtered, place)))

    def _filtered(self, place: str, inner: Filter, batch: Planned) -> Planned:
        batch.crossed.clear()
        try:
            after = cast("Planned", inner.apply(batch))
        except NoJavaError:
            raise
        except UserError as error:
            name = place.rpartition(".")[2]
            raise UserError(f"{place}: {str(error).removeprefix(f'{name}: ')}") from error
        self._notes[place] = Note(batch, after, tuple(batch.crossed))
        return after

    def _to_sink(self, batch: LazyBatch, number: int) -> LazyBatch:
        sink, place = self._sinks[number], self._places[number]
        given = batch if sink.identified else batch.without_identity()
        after = sink.stage(given, Attempt(dead_letters=DeadLetters(place)))
        self._notes[place] = Note(cast("Planned", batch), after)
        return cast("LazyBatch", after)

    def _to_dead_letters(self, batch: LazyBatch, path: str) -> Leaf:
        number = len(self._spec.leaves)
        identified = self._sinks[number].identified
        stage = ToDeadLetters(path, 0, identified, on_error.reasons)
        schema = dead_letters.schema_of_dead_letters(batch.schema, identified=identified)
        return Leaf(number, self._to_sink(batch.arrow(stage, schema), number))


def _sink(part: Component[SinkOptions], flow: str) -> Any:
    """Return the sink; a substitute where this host lacks a package or a module for it."""
    try:
        made = registry.get("sink", part.name).implementation_class()
        return made(part.options, TaskRevision(flow, "", 0))
    except FlumengError:
        return _Unmade(acts=part.name == "python")


@dataclass(frozen=True)
class _Unmade:
    acts: bool
    identified = False

    def stage(self, batch: LazyBatch, _attempt: Attempt) -> LazyBatch:
        return batch.acted(_act) if self.acts else batch.arrow(_pass, batch.schema)


@dataclass(frozen=True)
class _Noting(Wrapping):
    """A filter that tells ``note`` when it is planned."""

    _inner: Filter
    note: Callable[[Filter, Planned], Planned]

    def apply(self, batch: LazyBatch) -> LazyBatch:
        return self.note(self._inner, cast("Planned", batch))


@dataclass(frozen=True)
class _Adds(Filter):
    """Stands for a filter in Arrow that only adds ``columns``."""

    columns: Sequence[pa.Field]
    when: str | None

    def apply(self, batch: LazyBatch) -> LazyBatch:
        schema = pa.schema([*batch.schema, *self.columns])
        if self.when is not None:
            batch = Marks({WHEN: self.when}).mark(batch)
        return batch.arrow(_pass, schema)


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _act(_rows: Any) -> None: ...
