"""Which columns may differ when a batch is written again, because a table was read again meanwhile.

A lookup table changes between two attempts. A sink that finds an event's place from such a column
would put a repeated event into a second place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import exp

from flumeng.config import expressions, sql_text, statements
from flumeng.config.branch import Located
from flumeng.config.component import Component
from flumeng.config.filters import behind, made_again
from flumeng.config.filters.python import Python
from flumeng.config.filters.rename import Rename
from flumeng.config.filters.select import Select
from flumeng.config.filters.set import Set
from flumeng.config.filters.sql import Sql
from flumeng.config.filters.time import Time
from flumeng.config.kinds import Columns
from flumeng.config.partial import Unreadable
from flumeng.config.sinks import members, placed_by

_WORD = re.compile(r"\w+")


def unsteady_places(
    where: Located, columns: Columns, looked_up: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Component, str]]:
    """Yield ``(path, sink, column)`` for sinks whose place for an event may differ in a repeat.

    ``columns`` are in front of the segment, and ``looked_up`` are those of them that come from a
    table. Ends at a filter that does not fit.
    """
    for part in where.segment.filters:
        if isinstance(part.options, Unreadable):
            return
        try:
            after = behind(part.options, columns, conditional=part.when is not None)
        except ValueError:
            return
        looked_up = _behind(part, columns, after, looked_up)
        columns = after
    for number, sink in enumerate(where.segment.sinks):
        path = f"{where.path}sinks[{number}].{sink.name}"
        for one in (sink, *members(sink.options)):
            for column in placed_by(one.options):
                if column in looked_up:
                    yield path, one, column
    for inner in where.parts():
        yield from unsteady_places(inner, columns, looked_up)


def _behind(
    part: Component, before: Columns, after: Columns, known: frozenset[str]
) -> frozenset[str]:
    """The looked up columns behind a filter. Where it is not clear, a column counts as one."""
    options = part.options
    looks_up = getattr(options, "looks_up", False)
    reads = isinstance(options, Python) or _mentions(f"{options!r} {part.when}", known)
    if not (looks_up or (known and reads)):
        return known & after.keys()
    made = set(after.keys() - before.keys())
    if part.when is not None:
        made |= made_again(options)
    if isinstance(options, Sql):
        made = after.keys() - _taken_over(options.query, before)
    elif isinstance(options, Select):
        made = set()
        for text in options.expressions:
            if text.strip() != "*" and _mentions(text, known):
                made |= expressions.chosen(text, before).keys()
    elif isinstance(options, Set):
        made |= {name.partition(".")[0] for name in options.columns}
    elif isinstance(options, Rename):
        made = {new for old, new in options.columns.items() if old in known}
    elif isinstance(options, Time):
        made.add(options.to)
    return (known | made) & after.keys()


def _mentions(text: str, names: frozenset[str]) -> bool:
    return not names.isdisjoint(_WORD.findall(text))


def _taken_over(query: str, events: Columns) -> set[str]:
    """The columns of ``events`` that a statement hands on as they are; none when it is not a plain
    SELECT over the events."""
    tree = sql_text.parse_query(query)
    source = tree.args.get("from_") if isinstance(tree, exp.Select) else None
    table = source.this if source is not None else None
    if not isinstance(table, exp.Table) or table.name.lower() != statements.EVENTS:
        return set()
    names = ("", (table.alias or table.name).lower())
    found: set[str] = set()
    for part in tree.expressions:
        if part.is_star and getattr(part, "table", "").lower() in names:
            found |= events.keys()
        elif isinstance(part, exp.Column) and part.table.lower() in names:
            found |= {part.name} & events.keys()
    return found
