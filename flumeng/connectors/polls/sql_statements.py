"""What a database is asked, in SQL that databases have in common: window functions and no LIMIT."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.connectors.polls.sql_dialects import DIALECTS
from flumeng.connectors.polls.sql_options import SqlPollSource, TrackColumn

NOW, TOP, TOP_TEXT = "flumeng_now", "flumeng_top", "flumeng_top_text"
VALUE, KEY, NUMBER = "flumeng_value", "flumeng_key", "flumeng_number"


@dataclass(frozen=True)
class Place:
    """Behind which row: all with ``value`` or less are taken, or of those with the same ``value``
    all up to ``key``. With ``included`` it is where to begin."""

    value: str | int
    key: str | int | None = None
    included: bool = False


class Statements:
    """Of one source. The table is ``q`` in all of them."""

    def __init__(self, options: SqlPollSource) -> None:
        self.dialect = DIALECTS[options.database.kind]
        self._relation = options.table or f"({options.query}\n)"
        self._columns = ", ".join(f"q.{name}" for name in options.columns) or "q.*"

    def whole(self) -> str:
        return f"SELECT {self._columns} FROM {self._relation} q"

    def probe(self, track: TrackColumn, after: Place | None) -> str:
        """One row: the clock, and the greatest value of the column."""
        top = f"MAX(q.{track.column})"
        return (
            f"SELECT {self.dialect.clock} AS {NOW}, {top} AS {TOP}, "
            f"{self.dialect.text_of(top)} AS {TOP_TEXT} FROM {self._relation} q"
            + self._where(*self._after(track, after))
        )

    def page(self, track: TrackColumn, after: Place | None, until: str, count: int) -> str:
        """The first ``count`` rows behind ``after``, each with its number in the order of the
        column; ``until`` bounds the column: an operator and a constant."""
        column, key = f"q.{track.column}", f"q.{track.key}" if track.key else None
        order = f"{column}, {key}" if key else column
        wanted = [
            self._columns,
            f"{self.dialect.text_of(column)} AS {VALUE}",
            *([f"{key} AS {KEY}"] if key else []),
            f"ROW_NUMBER() OVER (ORDER BY {order}) AS {NUMBER}",
        ]
        where = self._where(*self._after(track, after), f"{column} {until}")
        return (
            f"SELECT p.* FROM (SELECT {', '.join(wanted)} FROM {self._relation} q{where}) p "
            f"WHERE p.{NUMBER} <= {count}"
        )

    def _after(self, track: TrackColumn, after: Place | None) -> list[str]:
        if after is None:
            return []
        column, value = f"q.{track.column}", self.dialect.constant(after.value)
        if after.key is None:
            return [f"{column} {'>=' if after.included else '>'} {value}"]
        rest = f"{column} = {value} AND q.{track.key} > {self.dialect.constant(after.key)}"
        # The first half alone is what an index is good for.
        return [f"{column} >= {value}", f"({column} > {value} OR ({rest}))"]

    def _where(self, *conditions: str) -> str:
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""
