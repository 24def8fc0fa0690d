"""Traces each event through a flow: the effect of each filter, and of each branch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from sqlglot import exp

from flumeng.agent.dryrun.filter_tree import batch_of, errors_in_one_line, events_of
from flumeng.config import FlowSpec, sql_text
from flumeng.config.branch import Branch
from flumeng.config.component import KEEP, Component, FilterOptions
from flumeng.config.component_summary import summary
from flumeng.config.stages import BranchStage, SinkStage
from flumeng.events import identity, json_text
from flumeng.events.attributes import PARSE_ERROR
from flumeng.events.lazy_batch import LazyBatch, Session
from flumeng.filters import on_error
from flumeng.filters.segments import Segment, Step, Way, segments_of

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ExplainedStep:
    """The effect of one filter or branch on an event; steps in a branch have a greater ``depth``.
    ``why``: values of the condition's columns, or an error. ``lost``: output cannot be traced."""

    name: str
    before: Row
    rows: tuple[Row, ...]
    why: Row
    depth: int = 0
    branch: bool = False
    lost: bool = False


@dataclass(frozen=True)
class Explained:
    event: Row
    steps: tuple[ExplainedStep, ...]


@dataclass(frozen=True)
class _Stage:
    """One step applied to all events. ``parent``: number of the preceding step. ``rows``: output
    rows by event; None when they cannot be traced to events."""

    name: str
    conditions: tuple[str | None, ...]
    parent: int | None
    rows: Mapping[int, list[Row]] | None
    depth: int
    branch: bool = False
    failed: Mapping[int, str] = field(default_factory=dict)


def explain(
    spec: FlowSpec, session: Session, events: Sequence[pa.RecordBatch]
) -> Iterator[Explained]:
    """Yield the trace of each event; they form one batch. Raises as ``FilterTree.run``."""
    identified = [identity.identify(batch, 0) for batch in events]
    if not identified:
        return
    with errors_in_one_line():
        stages = _explained(spec, session, identified)
    for seq, (event,) in (_rows(identified) or {}).items():
        yield Explained(event, tuple(_steps(event, seq, stages)))


def _explained(
    spec: FlowSpec, session: Session, identified: Sequence[pa.RecordBatch]
) -> Mapping[int, _Stage]:
    segments = list(segments_of(spec.stages).walk())
    steps = {step.place: step for segment in segments for step in segment.steps}
    ways = {way.segment.entry: (own, way) for own in segments for way in own.ways if way.segment}
    behind: dict[int | None, Sequence[pa.RecordBatch] | None] = {None: identified}
    explained: dict[int, _Stage] = {}
    for stage in spec.stages:
        before = behind.get(stage.behind)
        if before is None or isinstance(stage, SinkStage):
            continue
        failed: Sequence[pa.RecordBatch] | None = None
        conditions: tuple[str | None, ...] = (stage.part.when,)
        depth = stage.branch.count("/") + 1 if stage.branch else 0
        if isinstance(stage, BranchStage):
            name, depth = shown_branch(stage.part), depth - 1
            after = _through(session, before, partial(_entering, *ways[stage.number]))
        else:
            name, step = shown_filter(stage.part), steps[stage.place]
            conditions = (*conditions, getattr(stage.part.options, "expression", None))
            after = _through(session, before, step.mark, step)
            if after is not None and step.marks_failures:
                failed = _through(session, after, on_error.failed)
                after = _through(session, after, on_error.processed)
        behind[stage.number] = after
        reasons = {
            seq: rows[-1]["attrs"][PARSE_ERROR] for seq, rows in (_rows(failed) or {}).items()
        }
        explained[stage.number] = _Stage(
            name,
            conditions,
            stage.behind,
            _rows(after),
            depth,
            branch=isinstance(stage, BranchStage),
            failed=reasons,
        )
    return explained


def _entering(segment: Segment, way: Way, batch: LazyBatch) -> LazyBatch:
    return segment.take(segment.marks.mark(batch), way)


def _through(
    session: Session,
    events: Sequence[pa.RecordBatch],
    apply: Callable[[LazyBatch], LazyBatch],
    step: Step | None = None,
) -> list[pa.RecordBatch] | None:
    """Apply a step; return one or more batches, perhaps empty; None when untraceable to events."""
    schema = apply(batch_of(session, (), events[0].schema)).schema
    if identity.SEQ not in schema.names:
        return None
    for table in step.tables if step is not None else ():
        table.refresh()
    batches = events_of(apply(batch_of(session, events, events[0].schema)))
    return batches or [pa.RecordBatch.from_pylist([], schema)]


def _steps(event: Row, seq: int, stages: Mapping[int, _Stage]) -> Iterator[ExplainedStep]:
    for stage in stages.values():
        before = [event]
        if stage.parent is not None:
            before = (stages[stage.parent].rows or {}).get(seq, [])
        if before:
            rows = None if stage.rows is None else tuple(stage.rows.get(seq, ()))
            why = _named(stage.conditions, before[-1])
            if seq in stage.failed:
                why = {PARSE_ERROR: stage.failed[seq]}
            yield ExplainedStep(
                stage.name,
                before[-1],
                rows or (),
                why,
                stage.depth,
                branch=stage.branch,
                lost=rows is None,
            )


def outcome(step: ExplainedStep) -> str:
    """Return the effect of a step in words."""
    if step.lost:
        return "makes rows that cannot be matched to an event"
    if not step.rows:
        why = ", ".join(f"{name} is {_value(value)}" for name, value in step.why.items())
        did = "not taken" if step.branch else "dropped"
        return f"{did}: {why}" if why else did
    if step.branch:
        return "taken"
    effects = [", ".join(_changes(step.before, row)) or "kept" for row in step.rows]
    if len(effects) == 1:
        return effects[0]
    return f"made {len(effects)} rows: " + "; ".join(effects)


def _changes(before: Row, after: Row) -> Iterator[str]:
    for name, value in after.items():
        if name not in before:
            yield f"+{name}={_value(value)}"
        elif name == "attrs" and isinstance(value, dict):
            for key, attribute in value.items():
                if before["attrs"].get(key) != attribute:
                    yield f"+attrs.{key}={_value(attribute)}"
        elif value != before[name]:
            yield f"{name}={_value(value)} (was {_value(before[name])})"
    gone = [name for name in before if name not in after]
    if gone:
        yield f"-{' -'.join(gone)}"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_json(explained: Explained) -> dict[str, Any]:
    """Return the trace as ``flow try --explain --json`` prints it."""
    steps = [
        {
            "step": step.name,
            "depth": step.depth,
            "dropped": not step.rows and not step.lost,
            "lost": step.lost,
            "rows": step.rows,
            "why": step.why,
        }
        for step in explained.steps
    ]
    return {"event": explained.event, "steps": steps}


def shown_filter(part: Component[FilterOptions]) -> str:
    when = f" when {json.dumps(part.when)}" if part.when else ""
    return f"{summary(part)}{when}{'' if part.on_error == KEEP else f' on_error {part.on_error}'}"


def shown_branch(branch: Branch) -> str:
    if branch.otherwise:
        return f"branch {branch.name} otherwise"
    condition = f" when {json.dumps(branch.when)}" if branch.when else ""
    return f"branch {branch.name}{condition}"


def _named(conditions: Sequence[str | None], row: Row) -> Row:
    values: dict[str, Any] = {}
    for text in filter(None, conditions):
        try:
            tree = sql_text.parse(text)
        except ValueError:
            continue
        for column in tree.find_all(exp.Column):
            name = column.table or column.name
            values[name] = row.get(name)
    return values


def _rows(batches: Sequence[pa.RecordBatch] | None) -> dict[int, list[Row]] | None:
    if batches is None:
        return None
    rows: dict[int, list[Row]] = {}
    for batch in batches:
        numbers = batch[identity.SEQ].to_pylist()
        texts = json_text.rows(identity.strip(batch)).to_pylist()
        for number, text in zip(numbers, texts, strict=True):
            row = json.loads(text)
            rows.setdefault(number, []).append(
                {name: value for name, value in row.items() if name not in ("journal", "replayed")}
            )
    return rows
