"""SQL statements for all supported databases: window functions instead of LIMIT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flumeng.connectors.polls.sql_options import SqlPollSource, TrackColumn

NOW, TOP, TOP_TEXT = "flumeng_now", "flumeng_top", "flumeng_top_text"
VALUE, KEY, NUMBER = "flumeng_value", "flumeng_key", "flumeng_number"


@dataclass(frozen=True)
class Dialect:
    """``text`` casts a number or time to a text with all digits, comparable with the column.
    ``clock``: the database's time, zoned or in UTC. With ``properties`` times are in UTC."""

    text: str
    clock: str
    quote: str = "'"
    backslash: str = "\\"
    properties: Mapping[str, str] = field(default_factory=dict)

    def constant(self, value: str | int) -> str:
        if isinstance(value, int):
            return str(value)
        escaped = value.replace("\\", self.backslash).replace("'", "''")
        return f"{self.quote}{escaped}'"


_MYSQL = Dialect(
    "CAST({} AS CHAR(64))",
    "UTC_TIMESTAMP(6)",
    backslash="\\\\",
    properties={"connectionTimeZone": "UTC", "forceConnectionTimeZoneToSession": "true"},
)
DIALECTS: Mapping[str, Dialect] = {
    "postgresql": Dialect("CAST({} AS VARCHAR(64))", "CURRENT_TIMESTAMP"),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlserver": Dialect("CONVERT(VARCHAR(64), {}, 121)", "SYSUTCDATETIME()", quote="N'"),
    "db2": Dialect("VARCHAR({})", "(CURRENT TIMESTAMP - CURRENT TIMEZONE)"),
}


@dataclass(frozen=True)
class Position:
    """A position: all rows up to ``value`` are taken; with a ``key``, of those with ``value`` only
    the rows up to it. ``included``: rows with ``value`` are not taken yet."""

    value: str | int
    key: str | int | None = None
    included: bool = False


class Statements:
    """The statements of one source, with its table or query as ``q``."""

    def __init__(self, options: SqlPollSource) -> None:
        self.dialect = DIALECTS[options.database.kind]
        self._relation = options.table or f"({options.query}\n)"
        self._columns = ", ".join(f"q.{name}" for name in options.columns) or "q.*"

    def whole(self) -> str:
        return f"SELECT {self._columns} FROM {self._relation} q"

    def probe(self, track: TrackColumn, after: Position | None) -> str:
        """Return a query for one row: the clock, and the column's greatest value after ``after``,
        also as text."""
        top = f"MAX(q.{track.column})"
        return (
            f"SELECT {self.dialect.clock} AS {NOW}, {top} AS {TOP}, "
            f"{self.dialect.text.format(top)} AS {TOP_TEXT} FROM {self._relation} q"
            + _where(self._after(track, after))
        )

    def page(self, track: TrackColumn, after: Position | None, until: str, count: int) -> str:
        """Return a query for the first ``count`` rows after ``after``, numbered in the column's
        order. ``until``: an operator and a constant that bound the column."""
        column, key = f"q.{track.column}", f"q.{track.key}" if track.key else None
        order = f"{column}, {key}" if key else column
        columns = [
            self._columns,
            f"{self.dialect.text.format(column)} AS {VALUE}",
            *([f"{key} AS {KEY}"] if key else []),
            f"ROW_NUMBER() OVER (ORDER BY {order}) AS {NUMBER}",
        ]
        where = _where([*self._after(track, after), f"{column} {until}"])
        return (
            f"SELECT p.* FROM (SELECT {', '.join(columns)} FROM {self._relation} q{where}) p "
            f"WHERE p.{NUMBER} <= {count}"
        )

    def _after(self, track: TrackColumn, after: Position | None) -> list[str]:
        if after is None:
            return []
        column, value = f"q.{track.column}", self.dialect.constant(after.value)
        if after.key is None:
            return [f"{column} {'>=' if after.included else '>'} {value}"]
        rest = f"{column} = {value} AND q.{track.key} > {self.dialect.constant(after.key)}"
        # An index serves the first condition only.
        return [f"{column} >= {value}", f"({column} > {value} OR ({rest}))"]


def _where(conditions: list[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""
