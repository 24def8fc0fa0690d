"""The options of all components. This module is light: masters and the command line load it to
check flows, so it imports neither pyarrow nor other libraries of the components."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flumeng.connectors.api import (
    Columns,
    ExactlyOnce,
    FilterOptions,
    InputOptions,
    Kind,
    Need,
    SinkOptions,
    SourceOptions,
    check_column,
    option,
    require_column,
    require_new,
)


@dataclass(frozen=True)
class DiskUsage(SourceOptions):
    """Measures how full file systems are, one event for each path and time."""

    implementation: ClassVar[str] = "flumeng_example.disk_usage:DiskUsageSource"

    paths: tuple[str, ...] = option(doc="Directories of the file systems.", example="[/, /var]")
    every_seconds: float = option(doc="The interval.", between=(0.05, 86_400), default=10.0)

    def arrival(self) -> str:
        return "no measurements are taken while the node is down"

    def needs(self) -> Iterator[Need]:
        for path in self.paths:
            yield "path", path


@dataclass(frozen=True)
class SqliteRows(InputOptions):
    """Reads the rows of a SQLite table that only grows, each once, in the order of `rowid`."""

    implementation: ClassVar[str] = "flumeng_example.sqlite_rows:SqliteRowsInput"

    path: str = option(
        doc="The database: a file that all collecting hosts see.", example="/data/app.db"
    )
    table: str = option(doc="The table.", check=check_column, example="log")
    column: str = option(
        doc="The column that becomes the body.", check=check_column, example="message"
    )

    @property
    def local_path(self) -> str:
        return self.path

    def needs(self) -> Iterator[Need]:
        yield "path", self.path


@dataclass(frozen=True)
class Pattern(FilterOptions):
    """Adds the body with each number in it as `#`, so that like messages have like patterns."""

    implementation: ClassVar[str] = "flumeng_example.pattern:PatternFilter"
    bare: ClassVar[str] = "column"

    column: str = option(
        doc="The column to add.", check=check_column, example="pattern", default="pattern"
    )

    def behind(self, columns: Columns) -> Columns:
        require_column(columns, "body")
        require_new(columns, [self.column])
        return {**columns, self.column: Kind("binary")}


@dataclass(frozen=True)
class Sqlite(SinkOptions):
    """Writes events into a SQLite table, each exactly once when its flow says so."""

    implementation: ClassVar[str] = "flumeng_example.sqlite_sink:SqliteSink"
    exactly_once: ClassVar[ExactlyOnce] = "by batch"

    path: str = option(
        doc="The database: a file on the one host that collects.", example="/data/events.db"
    )
    table: str = option(
        doc="The table; created if it is missing.", check=check_column, default="events"
    )

    @property
    def local_path(self) -> str:
        return self.path

    def needs(self) -> Iterator[Need]:
        yield "output", self.path
