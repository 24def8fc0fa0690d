"""What each filter of a flow does to each event, one filter after the other, and each branch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot import exp

from flumeng.agent.dryrun.chain import FilterChain
from flumeng.agent.dryrun.filter_tree import entering
from flumeng.config import sql_text
from flumeng.config.branch import Branch, Located, Segment
from flumeng.config.component import KEEP, Component, FilterOptions
from flumeng.config.summary import summary
from flumeng.events import identity, json_text
from flumeng.events.lazy_batch import Session
from flumeng.events.reasons import PARSE_ERROR
from flumeng.filters import on_error

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """What a filter made of an event, which was ``before``: as many ``rows`` as came out, without
    what is null. Or which events a branch takes; what follows with a greater ``depth`` is in it.
    ``why`` are the values of the columns that the condition names. ``lost``: nobody can tell which
    of its rows are of this event."""

    name: str
    before: Row
    rows: tuple[Row, ...]
    why: Row
    depth: int = 0
    branch: bool = False
    lost: bool = False


@dataclass(frozen=True)
class Explained:
    """An event before all filters, and each step that it reaches."""

    event: Row
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class _Stage:
    """A step for all events. ``parent`` is the number of the one that it follows; ``rows`` are by
    event, and None when they are lost."""

    name: str
    conditions: tuple[str | None, ...]
    parent: int | None
    rows: Mapping[int, list[Row]] | None
    depth: int
    branch: bool = False
    failed: Mapping[int, str] = field(default_factory=dict)


def explain(
    flow: Segment, session: Session, events: Sequence[pa.RecordBatch]
) -> Iterator[Explained]:
    """For each of ``events``, which are one batch. Raises what a ``FilterChain`` raises."""
    known = [identity.identify(batch, 0) for batch in events]
    if not known:
        return
    explaining = _Explaining(session, [])
    explaining.segment(Located(flow), known, None, 0)
    for seq, (event,) in (_rows(known) or {}).items():
        yield Explained(event, tuple(_steps(event, seq, explaining.stages)))


@dataclass
class _Explaining:
    session: Session
    stages: list[_Stage]

    def segment(
        self, located: Located, events: Sequence[pa.RecordBatch], parent: int | None, depth: int
    ) -> None:
        """Append the stages of a flow or a branch, and of all that it parts into."""
        for part in located.segment.filters:
            chain = FilterChain([part], self.session, events[0].schema)
            found = _run(chain, events)
            expression = getattr(part.options, "expression", None)
            self.stages.append(
                _Stage(
                    _shown(part),
                    (part.when, expression),
                    parent,
                    _rows(found),
                    depth,
                    failed=self._failed(part, events),
                )
            )
            if found is None:
                return
            parent, events = len(self.stages) - 1, found
        for number, below in enumerate(located.parts()):
            branch = below.segment
            assert isinstance(branch, Branch)
            enter = entering(located.segment, number)
            taken = _run(FilterChain((), self.session, events[0].schema, enter=enter), events)
            assert taken is not None, "a branch keeps all columns"
            self.stages.append(
                _Stage(
                    _shown_branch(branch), (branch.when,), parent, _rows(taken), depth, branch=True
                )
            )
            self.segment(below, taken, len(self.stages) - 1, depth + 1)

    def _failed(
        self, part: Component[FilterOptions], events: Sequence[pa.RecordBatch]
    ) -> Mapping[int, str]:
        """Why events leave the flow at a filter that does not keep what it cannot process."""
        if part.on_error == KEEP:
            return {}
        chain = FilterChain([part], self.session, events[0].schema, marks=True)
        letters = FilterChain((), self.session, chain.schema, enter=on_error.failed)
        return {
            seq: rows[-1]["attrs"][PARSE_ERROR]
            for seq, rows in (_rows(letters.run(chain.run(events))) or {}).items()
        }


def _run(chain: FilterChain, events: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
    """At least one batch, perhaps without rows; None when events are not known behind it."""
    if identity.SEQ not in chain.schema.names:
        return None
    return chain.run(events) or [pa.RecordBatch.from_pylist([], chain.schema)]


def _steps(event: Row, seq: int, stages: Sequence[_Stage]) -> Iterator[Step]:
    for stage in stages:
        before = [event]
        if stage.parent is not None:
            before = (stages[stage.parent].rows or {}).get(seq, [])
        if before:
            rows = None if stage.rows is None else tuple(stage.rows.get(seq, ()))
            why = _named(stage.conditions, before[-1])
            if seq in stage.failed:
                why = {PARSE_ERROR: stage.failed[seq]}
            yield Step(
                stage.name,
                before[-1],
                rows or (),
                why,
                stage.depth,
                branch=stage.branch,
                lost=rows is None,
            )


def _shown(part: Component[FilterOptions]) -> str:
    when = f" when {json.dumps(part.when)}" if part.when else ""
    return f"{summary(part)}{when}{'' if part.on_error == KEEP else f' on_error {part.on_error}'}"


def _shown_branch(branch: Branch) -> str:
    if branch.otherwise:
        return f"branch {branch.name} otherwise"
    condition = f" when {json.dumps(branch.when)}" if branch.when else ""
    return f"branch {branch.name}{condition}"


def _named(conditions: Sequence[str | None], row: Row) -> Row:
    """The values of the columns that the conditions name."""
    found: dict[str, Any] = {}
    for text in filter(None, conditions):
        try:
            tree = sql_text.parse(text)
        except ValueError:
            continue
        for column in tree.find_all(exp.Column):
            name = column.table or column.name
            found[name] = row.get(name)
    return found


def _rows(batches: Sequence[pa.RecordBatch] | None) -> dict[int, list[Row]] | None:
    """The rows of each event by its number, as JSON has them."""
    if batches is None:
        return None
    found: dict[int, list[Row]] = {}
    for batch in batches:
        numbers = batch[identity.SEQ].to_pylist()
        texts = json_text.rows(identity.strip(batch)).to_pylist()
        for number, text in zip(numbers, texts, strict=True):
            row = json.loads(text)
            found.setdefault(number, []).append(
                {name: value for name, value in row.items() if name not in ("journal", "replayed")}
            )
    return found
