"""The options of the source ``sql_poll``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from flumeng.config.component import Guarantee
from flumeng.config.tables import Jdbc, check_jdbc, check_property, check_table
from flumeng.connectors.polls.options import (
    Answers,
    KeepsAnswers,
    Schedule,
    answers_option,
    schedule_option,
)
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.patterns import check_timezone

TrackKind = Literal["integer", "timestamp"]
_COLUMN = re.compile(
    r'[A-Za-z_][A-Za-z0-9_$]*|"[^"\n]{1,128}"|`[^`\n]{1,128}`|\[[^\]\n]{1,128}\]', re.ASCII
)
_NUMBER = re.compile(r"-?[0-9]{1,38}", re.ASCII)


def check_column(text: str) -> None:
    if not _COLUMN.fullmatch(text):
        raise ValueError('expected a column as SQL names it, like "id" or \'"createdAt"\'')


def check_query(text: str) -> None:
    if not text.strip() or text.rstrip().endswith(";"):
        raise ValueError("expected one SELECT without a semicolon at its end")


def check_start(text: str) -> None:
    if _NUMBER.fullmatch(text):
        return
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("expected a number, or a time with its zone, like 2026-11-22T08:00:00Z")


@dataclass(frozen=True, kw_only=True)
class TrackColumn:
    """The column by which rows are taken once. While transactions write, rows become visible in
    another order than that of the column. A row is taken when all below it are visible or can no
    longer appear: a transaction that writes has to end within `settle_seconds`."""

    column: str = option(
        doc="A unique number that grows, such as a key from a sequence without a cache; or the "
        "time at which the row was written last. Rows where it is null are not taken. It should "
        "have an index.",
        check=check_column,
        example="id",
    )
    kind: TrackKind | None = option(
        doc="The kind of the column; by default that of its type.", default=None
    )
    key: str | None = option(
        doc="A column that is unique among rows with the same value. Without it all rows that one "
        "statement gave the same time are in one answer, and too many of them are refused.",
        check=check_column,
        example="id",
        default=None,
    )
    start_from: str | None = option(
        doc="Take only rows with this value or a greater one: a number, or a time with its zone.",
        check=check_start,
        example='"2026-11-22T08:00:00Z"',
        default=None,
    )
    settle_seconds: float = option(
        doc="For how long a transaction that writes may be open. A row after a missing number "
        "waits this long; a row with a time is taken when it is this old by the database's own "
        "clock.",
        between=(0, 86_400),
        default=60.0,
    )
    time_zone: str = option(
        doc="The zone of times in a column without one. Where the clock is set back, rows of that "
        "hour wait until it is over.",
        check=check_timezone,
        example="Europe/Berlin",
        default="UTC",
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.start_from is not None and self.kind is not None:
            is_number = bool(_NUMBER.fullmatch(self.start_from))
            if is_number != (self.kind == "integer"):
                yield "start_from", f"expected a value of the kind {self.kind}"
        if self.kind == "integer" and self.time_zone != "UTC":
            yield "time_zone", "needs a column with times"


@dataclass(frozen=True, kw_only=True)
class SqlPollSource(KeepsAnswers):
    """Polls a database at the times of a schedule, through Spark, whose `packages` have its driver.

    An event's body is a row as JSON, its time is the due time. With `track` each row is taken once,
    without it all rows are taken at each due time.
    """

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})
    poll: ClassVar[str] = "flumeng.connectors.polls.sql_poll:SqlPoll"
    needs_own_driver: ClassVar[bool] = True

    url: str = option(
        doc="The database, without parameters and without a user.",
        check=check_jdbc,
        example='"jdbc:postgresql://db.example:5432/shop"',
    )
    table: str | None = option(
        doc="The table or view.", check=check_table, example="shop.orders", default=None
    )
    query: str | None = option(
        doc="A SELECT instead of the table; it runs as a subquery.",
        check=check_query,
        example="\"SELECT id, total FROM orders WHERE state = 'paid'\"",
        default=None,
    )
    columns: tuple[str, ...] = option(
        doc="The columns to take; by default all.",
        check=check_column,
        between=(0, 1000),
        example="[id, total]",
        default=(),
    )
    track: TrackColumn | None = option(doc="Take each row once, by a column.", default=None)
    username: str | None = option(doc="The user that reads.", example="flumeng", default=None)
    password: str | None = option(
        doc="The password of `username`.", secret=True, example="${secret:shop-db}", default=None
    )
    properties: Mapping[str, str] = option(
        doc="Properties of the driver for TLS and time-outs.",
        check=check_property,
        example="{sslmode: verify-full}",
        factory=dict,
    )
    fetch_rows: int = option(
        doc="The number of rows that the driver has in memory at once: fewer where a row has some "
        "MiB.",
        between=(1, 100_000),
        default=1000,
    )
    timeout_seconds: float = option(
        doc="A statement that takes longer is ended, and repeated later.",
        between=(1, 600),
        default=60.0,
    )
    schedule: Schedule = schedule_option()
    answers: Answers = answers_option()

    @property
    def database(self) -> Jdbc:
        return Jdbc(self.url, self.table or "", self.username, self.password, self.properties)

    def needs(self) -> Iterator[Need]:
        database = self.database
        if self.table is not None:
            inputs = dict.fromkeys((database.address, database.table_address))
        else:
            # In PostgreSQL a statement cannot name other databases of the server.
            alone = database.kind == "postgresql"
            inputs = dict.fromkeys([database.address if alone else database.server])
        for name in inputs:
            yield "input", name
        if "sslrootcert" in self.properties:
            yield "path", self.properties["sslrootcert"]
        yield "output", self.answers.path

    def problems(self) -> Iterator[tuple[str, str]]:
        if (self.table is None) == (self.query is None):
            yield "table", "expected either table or query"
        if self.password is not None and self.username is None:
            yield "password", "needs a username"

    def arrival(self) -> str:
        if self.track is None:
            return "all rows are taken at each due time"
        return (
            "each row is taken once, if the transaction that wrote it was open for less than "
            f"{self.track.settle_seconds:g} s"
        )
