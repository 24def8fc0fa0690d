"""Which columns a flow's events have behind each of its filters, and whether all fits together.

What is told here would otherwise be told by the collector, when the flow already runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flumeng.spec import expressions, statements
from flumeng.spec.component import Component
from flumeng.spec.expressions import Kind
from flumeng.spec.filters import Lookup, Parse, Select, Sql, Where
from flumeng.spec.flow import FlowSpec
from flumeng.spec.functions import ATOMIC, BINARY, BOOLEAN, DATE, INTEGER, TEXT, TIMESTAMP
from flumeng.spec.patterns import FIELD, group_names, split_query
from flumeng.spec.problems import nearest
from flumeng.spec.sinks import exactly_once, numbered
from flumeng.spec.sinks.files import Files
from flumeng.spec.sinks.lakehouse import Delta, Iceberg, partition
from flumeng.spec.sinks.spark import Spark
from flumeng.spec.tables import LookupTable

_TEXT = Kind(TEXT)
RECEIVED = {
    "body": Kind(BINARY),
    "ts": Kind(TIMESTAMP),
    "host": _TEXT,
    "attrs": Kind("map", (("", _TEXT), ("", _TEXT))),
}
EVENT = {**RECEIVED, "journal": _TEXT, "seq": Kind(INTEGER), "replayed": Kind(BOOLEAN)}
SYSLOG = {
    "facility": Kind(INTEGER),
    "severity": Kind(INTEGER),
    "app": _TEXT,
    "procid": _TEXT,
    "msgid": _TEXT,
    "structured": _TEXT,
    "message": _TEXT,
}
IN_KEYS = frozenset({TEXT, BINARY, INTEGER, BOOLEAN, DATE, TIMESTAMP})
IN_PATHS = (TEXT, INTEGER, BOOLEAN, DATE)
Columns = dict[str, Kind]


def check(spec: FlowSpec) -> Iterator[tuple[str, str]]:
    """Yield ``(path, message)`` for what is wrong. Behind a filter that is, nothing is known and
    nothing said."""
    columns = EVENT
    for number, part in enumerate(spec.filters):
        path = f"filters[{number}].{part.name}"
        try:
            columns = _behind(part, columns)
        except _WrongEntryError as wrong:
            yield f"{path}[{wrong.number}]", str(wrong)
            return
        except ValueError as error:
            yield path, str(error)
            return
    for number, sink in enumerate(spec.sinks):
        path = f"sinks[{number}].{sink.name}"
        yield from _of_sink(path, sink, columns)
        if (problem := _unsteady(spec, sink)) is not None:
            yield path, problem


def _unsteady(spec: FlowSpec, sink: Component) -> str | None:
    """Of a sink that relies on a batch that is repeated having the same events."""
    by_event = spec.delivery == "exactly-once" and exactly_once(sink.options) == "by event"
    if not by_event and not numbered(sink.options):
        return None
    queries = [part.options.query for part in spec.filters if isinstance(part.options, Sql)]
    found = next(filter(None, map(statements.unsteady, queries)), None)
    return found and (
        f"{found} of the filter sql may choose other events when a batch is repeated, which "
        f"{sink.name} would keep beside those it has: order by __journal and __seq too, or leave it"
    )


class _WrongEntryError(ValueError):
    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def _behind(part: Component, columns: Columns) -> Columns:
    options: Any = part.options
    if isinstance(options, Where):
        expressions.check_condition(options.expression, columns)
        return columns
    if isinstance(options, Select):
        return _selected(options.expressions, columns)
    if isinstance(options, Lookup):
        return _looked_up(options, columns)
    if isinstance(options, Sql):
        tables = {name: columns_of_table(table) for name, table in options.tables.items()}
        return statements.check(options.query, columns, tables)
    assert isinstance(options, Parse)
    return _parsed(options, columns)


def _selected(texts: Iterable[str], columns: Columns) -> Columns:
    found: Columns = {}
    for number, text in enumerate(texts):
        try:
            more = expressions.chosen(text, columns)
            _require_new(found, more)
        except ValueError as error:
            raise _WrongEntryError(number, str(error)) from None
        found |= more
    return found


def _parsed(options: Parse, columns: Columns) -> Columns:
    for name, kind in RECEIVED.items():
        if columns.get(name) != kind:
            raise ValueError(f"needs the column {name} as it was received: put select behind parse")
    if options.format == "syslog":
        more = SYSLOG
    elif options.format == "regex":
        more = dict.fromkeys(group_names(options.pattern or ""), _TEXT)
    else:
        more = expressions.columns_of_ddl(options.schema or "")
        for name in more.keys() & {"ts", "host"}:
            if more[name] != RECEIVED[name]:
                raise ValueError(
                    f"{name} sets the event's own: it has to be a {RECEIVED[name].name}"
                )
        more = {name: kind for name, kind in more.items() if name not in ("ts", "host")}
    _require_new(columns, more)
    return {**columns, **more}


def _looked_up(options: Lookup, columns: Columns) -> Columns:
    table = columns_of_table(options.table)
    for name in options.on:
        for where, known in (("the events", columns), ("the table", table)):
            if name not in known:
                raise ValueError(
                    f"there is no column {name} in {where}; {nearest(name, list(known))}"
                )
        kinds = {columns[name].name, table[name].name}
        if len(kinds) > 1 or not kinds <= IN_KEYS:
            raise ValueError(
                f"{name} is a {columns[name].name} of events and a {table[name].name} of the "
                f"table: both have to be the same of {', '.join(sorted(IN_KEYS))}"
            )
    more = {name: kind for name, kind in table.items() if name not in options.on}
    if not more and options.how == "left":
        raise ValueError("the schema of the table has nothing but the columns of on: add what for")
    _require_new(columns, more)
    return {**columns, **more}


def columns_of_table(table: LookupTable) -> Columns:
    """The columns that are taken of a table. Raises ValueError."""
    found = expressions.columns_of_ddl(table.schema)
    _require_new((), found)
    for name, kind in found.items():
        if kind.name not in ATOMIC:
            raise ValueError(f"the column {name} of a table cannot be a {kind.name}")
    return found


def _require_new(columns: Iterable[str], more: Iterable[str]) -> None:
    """Spark does not tell names apart by their case."""
    taken = {name.lower() for name in columns}
    for name in more:
        if name.lower() in taken:
            raise ValueError(f"there is a column {name} already")
        taken.add(name.lower())


def _of_sink(path: str, sink: Component, columns: Columns) -> Iterator[tuple[str, str]]:
    if isinstance(sink.options, Delta | Iceberg):
        for column, _ in map(partition, sink.options.partition_by):
            if column not in columns:
                yield path, f"partition_by: no column {column}; {nearest(column, list(columns))}"
    if isinstance(sink.options, Spark):
        for column in sink.options.partition_by:
            if column not in columns:
                yield path, f"partition_by: no column {column}; {nearest(column, list(columns))}"
    if not isinstance(sink.options, Files):
        return
    timed = columns.get("ts")
    if "%" in sink.options.path and (timed is None or timed.name != TIMESTAMP):
        yield path, "time patterns in the path need the column ts, a timestamp: keep it in select"
    for name in FIELD.findall(split_query(sink.options.path)[0]):
        if name not in columns:
            yield path, f"the path needs the column {name}; {nearest(name, list(columns))}"
        elif columns[name].name not in IN_PATHS:
            yield path, f"{name} is a {columns[name].name}, which no path can hold: cast it to text"
    if sink.options.format == "text" and "body" not in columns:
        yield path, f"text writes the column body; {nearest('body', list(columns))}"
