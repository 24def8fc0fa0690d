"""The options of every filter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.spec.option import option
from flumeng.spec.patterns import check_regex, check_timezone, group_names
from flumeng.spec.tables import LookupTable

EVENT_COLUMNS = ("body", "ts", "host", "attrs", "journal", "seq", "replayed")


@dataclass(frozen=True)
class Parse:
    """Reads the body of each event and adds a column for each thing found in it.

    An event that cannot be parsed is kept, with the reason in the attribute `parse_error`.
    """

    format: Literal["syslog", "json", "regex"] = option(
        doc="What the bodies are: syslog messages, JSON objects, or lines that a pattern matches."
    )
    pattern: str | None = option(
        doc="For `regex`: the pattern (RE2). Each named group becomes a text column.",
        check=check_regex,
        example="'(?P<client>\\S+) (?P<status>[0-9]+)'",
        default=None,
    )
    schema: str | None = option(
        doc="For `json`: the columns to take, as Spark DDL.",
        example='"user STRING, took_ms DOUBLE"',
        default=None,
    )
    timezone: str | None = option(
        doc="For `syslog`: the time zone, by its IANA name, of times that name none (else UTC).",
        check=check_timezone,
        example="Europe/Berlin",
        default=None,
    )
    ts_within_seconds: float = option(
        doc="A time that lies farther from the event's receipt is not believed: `ts` stays that of "
        "the receipt, and the attribute `ts_refused` has what was said.",
        unit="seconds",
        minimum=0,
        maximum=1000 * 366 * 86_400,
        default=7 * 86_400.0,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        taken = [n for n in group_names(self.pattern or "") if n in EVENT_COLUMNS]
        if taken:
            yield "pattern", f"every event has a column {taken[0]} already: rename the group"
        for name, wanted_by in (("pattern", "regex"), ("schema", "json")):
            given = getattr(self, name) is not None
            if self.format == wanted_by and not given:
                yield "", f'missing "{name}": format {wanted_by} needs it'
            elif self.format != wanted_by and given:
                yield name, f"only format {wanted_by} takes it, and the format is {self.format}"
        if self.timezone is not None and self.format != "syslog":
            yield "timezone", f"only format syslog takes it, and the format is {self.format}"


@dataclass(frozen=True)
class Where:
    """Keeps the events for which a condition in Spark SQL is true."""

    bare: ClassVar[str] = "expression"

    expression: str = option(doc="The condition.", example='"severity <= 4"')


@dataclass(frozen=True)
class Select:
    """Chooses and computes columns in Spark SQL; all others are dropped."""

    bare: ClassVar[str] = "expressions"

    expressions: tuple[str, ...] = option(
        doc="The columns to keep, each an expression.",
        minimum=1,
        example='["ts", "host", "upper(app) AS app"]',
    )


@dataclass(frozen=True)
class Lookup:
    """Adds columns from the row of a small table that has the same key.

    The table has one row for a key at most: one with several is not read, and the one before it
    stays. A key that is null is in no table.
    """

    on: tuple[str, ...] = option(
        doc="The columns that events and the table have in common.", minimum=1, example="[app]"
    )
    table: LookupTable = option(
        doc="The table. Its other columns are added.",
        example='{csv: /etc/flumeng/apps.csv, schema: "app STRING, team STRING"}',
    )
    how: Literal["left", "inner"] = option(
        doc="Events without a row: their new columns are null, or they are dropped.",
        default="left",
    )

    looks_up: ClassVar[bool] = True

    def needs(self) -> Iterator[tuple[str, str]]:
        yield from self.table.needs()


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)


def check_table_name(text: str) -> None:
    if not _NAME.fullmatch(text) or text.lower() == "events":
        raise ValueError("expected a name of letters, digits and _, other than events")


@dataclass(frozen=True)
class Sql:
    """A whole statement in Spark SQL, over the table `events` and further tables.

    It sees one batch: aggregates and windows are over the events of that batch.
    """

    bare: ClassVar[str] = "query"

    query: str = option(
        doc="The statement.",
        example='"SELECT e.*, a.team FROM events e LEFT JOIN apps a ON e.app = a.app"',
    )
    tables: Mapping[str, LookupTable] = option(
        doc="Further tables by the names that they have in the statement.",
        check=check_table_name,
        example='{apps: {csv: /etc/flumeng/apps.csv, schema: "app STRING, team STRING"}}',
        factory=dict,
    )

    @property
    def looks_up(self) -> bool:
        return bool(self.tables)

    def needs(self) -> Iterator[tuple[str, str]]:
        for table in self.tables.values():
            yield from table.needs()

    def problems(self) -> Iterator[tuple[str, str]]:
        if len({name.lower() for name in self.tables}) < len(self.tables):
            yield (
                "tables",
                "two names differ by their case alone, which Spark does not tell",
            )
