"""Checks the columns of a flow's events after each filter, before the flow runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flumeng.config import expressions
from flumeng.config.branch import Located
from flumeng.config.column_kinds import EVENT, RECEIVED, Columns
from flumeng.config.component import (
    KEEP,
    Component,
    EntriesError,
    FilterOptions,
    SinkOptions,
    mentions,
)
from flumeng.config.flow import FlowSpec
from flumeng.config.partial_flow import Unreadable
from flumeng.config.sql_text import TextError

UNSTEADY = (
    "{sink} places events by {column}, which comes from a table: if the table changes before a "
    "batch is repeated, {sink} has the event twice; use delivery at-least-once, or take index and "
    "routing from columns of the event itself"
)


@dataclass(frozen=True)
class _Events:
    """The columns at a place of a flow. ``certain``: False after a problem that may change them."""

    columns: Columns
    certain: bool = True

    def shows(self, error: ValueError) -> bool:
        """Return whether to report the error: the columns are certain or irrelevant to it."""
        return self.certain or isinstance(error, TextError)


def check(spec: FlowSpec, given: Columns | None = None) -> Iterator[tuple[str, str]]:
    """Yield problems as ``(path, message)``. After a filter with a problem the columns are unknown,
    and only problems that do not depend on them are reported. ``given``: the columns of the events,
    if not those of the sources."""
    readable = not any(isinstance(part.options, Unreadable) for part in spec.sources)
    columns = read(spec) if given is None else given
    yield from _of_segment(spec, Located(spec), _Events(columns, readable), ())
    if spec.delivery == "exactly-once":
        for path, sink, column in unsteady_places(Located(spec), columns):
            yield path, UNSTEADY.format(column=column, sink=sink.name)


def _of_segment(
    spec: FlowSpec, where: Located, events: _Events, before: tuple[Component[FilterOptions], ...]
) -> Iterator[tuple[str, str]]:
    filters = (*before, *where.segment.filters)
    for number, part in enumerate(where.segment.filters):
        path = f"{where.path}filters[{number}]"
        before_it = events
        events, errors = _through(part, path, events)
        for option, error in errors:
            if before_it.shows(error):
                yield option, str(error)
        yield from ((f"{path}.{part.name}", problem) for problem in _of_lines(spec, part))
        attrs = all(c.columns.get("attrs") == RECEIVED["attrs"] for c in (before_it, events))
        if part.on_error != KEEP and events.certain and not attrs:
            yield (f"{path}.on_error", "on_error needs the received column attrs: keep attrs")
    for number, sink in enumerate(where.segment.sinks):
        if isinstance(sink.options, Unreadable):
            continue
        path = f"{where.path}sinks[{number}].{sink.name}"
        if events.certain:
            yield from _of_sinks(path, sink, events.columns)
        problems = (_unsteady(spec.delivery, filters, sink), _multiplied(filters, sink))
        yield from ((path, problem) for problem in problems if problem is not None)
    for branch, inner in zip(where.segment.branches, where.parts(), strict=True):
        if branch.when is not None:
            try:
                expressions.check_condition(branch.when, events.columns)
            except ValueError as error:
                if events.shows(error):
                    yield f"{inner.path}when", str(error)
        yield from _of_segment(spec, inner, events, filters)


def _through(
    part: Component[FilterOptions], path: str, events: _Events
) -> tuple[_Events, list[tuple[str, ValueError]]]:
    if isinstance(part.options, Unreadable):
        return _Events(events.columns, certain=False), []
    errors: list[tuple[str, ValueError]] = []
    if part.when is not None:
        try:
            expressions.check_condition(part.when, events.columns)
        except ValueError as error:
            errors.append((f"{path}.when", error))
    path = f"{path}.{part.name}"
    try:
        columns = part.options.columns_behind(events.columns, conditional=part.when is not None)
    except EntriesError as entries:
        errors += [(f"{path}[{number}]", error) for number, error in entries.errors.items()]
    except ValueError as error:
        errors.append((path, error))
    else:
        return _Events(columns, events.certain), errors
    certain = events.certain and part.options.keeps_columns
    return _Events(events.columns, certain), errors


def _of_lines(spec: FlowSpec, part: Component[FilterOptions]) -> Iterator[str]:
    """Yield reasons why a filter contradicts the flow's ``multiline``."""
    if spec.multiline is None:
        return
    if part.options.leaves_unread:
        yield "LIMIT leaves lines unread that multiline has to join: add an ORDER BY"
    if part.options.reads_container and spec.multiline.container is not None:
        yield "multiline already unwraps the lines of containers: leave this filter out"


def read(spec: FlowSpec) -> Columns:
    """Return the columns of events as they are read. A journal in Kafka adds none."""
    columns = dict(EVENT)
    for part in spec.sources:
        columns |= part.options.read_columns
    return columns


def _unsteady(
    delivery: str, filters: tuple[Component[FilterOptions], ...], sink: Component[SinkOptions]
) -> str | None:
    """Return the problem of a sink that needs the same events in a repeated batch, or None."""
    by_event = delivery == "exactly-once" and sink.options.exactly_once == "by event"
    if not by_event and not sink.options.numbered:
        return None
    grouping = [part.name for part in filters if part.options.regroups]
    if by_event and grouping:
        return (
            f"{grouping[0]} makes rows from all events of a batch, and a repeated batch may have "
            f"other events: {sink.name} would keep both rows; use delivery at-least-once"
        )
    unsteady = [(part.options.unsteady, part.name) for part in filters if part.options.unsteady]
    if not unsteady:
        return None
    return (
        f"{unsteady[0][0]} of the filter {unsteady[0][1]} may choose other events when a batch is "
        f"repeated, and {sink.name} would keep both: order by __journal and __seq too, or remove it"
    )


def _multiplied(
    filters: tuple[Component[FilterOptions], ...], sink: Component[SinkOptions]
) -> str | None:
    """Return the problem of a sink that would keep one of several rows of an event, or None."""
    names = [part.name for part in filters if part.options.multiplies]
    if not names or not sink.options.one_row_an_event:
        return None
    return (
        f"{names[0]} makes several rows of an event, and {sink.name} with these options keeps only "
        "one of them: use other options, or another sink"
    )


def _of_sinks(
    path: str, sink: Component[SinkOptions], columns: Columns
) -> Iterator[tuple[str, str]]:
    yield from ((path, problem) for problem in sink.options.misfits(columns))
    for number, member in enumerate(sink.options.members):
        for problem in member.options.misfits(columns):
            yield f"{path}[{number}].{member.name}", problem


def unsteady_places(
    where: Located, columns: Columns, looked_up: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Component[SinkOptions], str]]:
    """Yield ``(path, sink, column)`` for sinks that place an event by a column from a lookup table.
    A table may be read again before a batch is repeated, and then the sink keeps a duplicate.
    ``columns``: those before the segment; ``looked_up``: of these, those from a table. Stops at a
    filter that does not fit."""
    for part in where.segment.filters:
        if isinstance(part.options, Unreadable):
            return
        try:
            after = part.options.columns_behind(columns, conditional=part.when is not None)
        except ValueError:
            return
        looked_up = _looked_up_behind(part, columns, after, looked_up)
        columns = after
    for number, sink in enumerate(where.segment.sinks):
        path = f"{where.path}sinks[{number}].{sink.name}"
        for member in (sink, *sink.options.members):
            for column in member.options.placed_by:
                if column in looked_up:
                    yield path, member, column
    for inner in where.parts():
        yield from unsteady_places(inner, columns, looked_up)


def _looked_up_behind(
    part: Component[FilterOptions], before: Columns, after: Columns, looked_up: frozenset[str]
) -> frozenset[str]:
    """Return the columns after a filter that come, or may come, from a lookup table."""
    options: FilterOptions = part.options
    reads = options.reads_any or mentions(f"{options!r} {part.when}", looked_up)
    if not (options.looks_up or (looked_up and reads)):
        return looked_up & after.keys()
    made = options.looked_up(before, after, looked_up)
    if part.when is not None:
        made = made | options.made_again()
    return (looked_up | made) & after.keys()
