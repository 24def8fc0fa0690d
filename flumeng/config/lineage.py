"""Which columns may differ when a batch is written again, because a table was read again meanwhile.

A lookup table changes between two attempts. A sink that finds an event's place from such a column
would put a repeated event into a second place.
"""

from __future__ import annotations

from collections.abc import Iterator

from flumeng.config.branch import Located
from flumeng.config.component import Component, FilterOptions, SinkOptions, mentions
from flumeng.config.kinds import Columns
from flumeng.config.partial import Unreadable


def unsteady_places(
    where: Located, columns: Columns, looked_up: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Component[SinkOptions], str]]:
    """Yield ``(path, sink, column)`` for sinks whose place for an event may differ in a repeat.

    ``columns`` are in front of the segment, and ``looked_up`` are those of them that come from a
    table. Ends at a filter that does not fit.
    """
    for part in where.segment.filters:
        if isinstance(part.options, Unreadable):
            return
        try:
            after = part.options.columns_behind(columns, conditional=part.when is not None)
        except ValueError:
            return
        looked_up = _behind(part, columns, after, looked_up)
        columns = after
    for number, sink in enumerate(where.segment.sinks):
        path = f"{where.path}sinks[{number}].{sink.name}"
        for one in (sink, *sink.options.members):
            for column in one.options.placed_by:
                if column in looked_up:
                    yield path, one, column
    for inner in where.parts():
        yield from unsteady_places(inner, columns, looked_up)


def _behind(
    part: Component[FilterOptions], before: Columns, after: Columns, known: frozenset[str]
) -> frozenset[str]:
    """The looked up columns behind a filter. Where it is not clear, a column counts as one."""
    options: FilterOptions = part.options
    reads = options.reads_any or mentions(f"{options!r} {part.when}", known)
    if not (options.looks_up or (known and reads)):
        return known & after.keys()
    made = options.looked_up(before, after, known)
    if part.when is not None:
        made = made | options.made_again()
    return (known | made) & after.keys()
