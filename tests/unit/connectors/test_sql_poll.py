"""The choice of a database's rows at each poll, without a database. A real one is polled in
tests/live/test_sql_poll.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config import check_flow
from flumeng.connectors.polls.options import Answers, Schedule
from flumeng.connectors.polls.sql_options import SqlPollSource, TrackColumn
from flumeng.connectors.polls.sql_poll import PAGE_ROWS, QueryResult, SqlPoll
from flumeng.connectors.polls.sql_state import (
    MARKS,
    Mark,
    State,
    complete,
    marked,
    settled,
    time_bound,
    time_constant,
)
from flumeng.connectors.polls.sql_statements import DIALECTS, Position, Statements
from flumeng.events import json_text
from flumeng.platform.errors import CorruptError, UserError
from flumeng.platform.options.problems import SpecError

DUE = datetime(2026, 11, 26, 12, tzinfo=UTC)
SECOND = 1_000_000
SETTLE = 10
URL = "jdbc:postgresql://db.example/shop"


def source(**options: Any) -> SqlPollSource:
    given: dict[str, Any] = {
        "url": URL,
        "schedule": Schedule(every_seconds=1),
        "answers": Answers(path="/tmp/answers"),
        **({} if "query" in options else {"table": "rows"}),
    }
    return SqlPollSource(**(given | options))


@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, SETTLE - 1), st.booleans()), max_size=40),
    st.integers(1, 7),
    st.none() | st.just(0),
)
def test_each_number_is_taken_once_for_any_order_of_commits(
    drawn: list[tuple[int, int, bool]], every: int, below: int | None
) -> None:
    """A number is drawn, and so much later its transaction commits, or rolls back."""
    rows: list[tuple[int, int | None]] = []
    now = 0
    for number, (pause, open_for, commits) in enumerate(drawn, start=1):
        now += pause
        rows.append((number, now + open_for if commits else None))
    end = now + 4 * SETTLE
    taken: list[int] = []
    marks: tuple[Mark, ...] = ()
    for clock in range(0, end + 1, every):
        visible = [n for n, at in rows if at is not None and at <= clock]
        behind = [n for n in visible if below is None or n > below]
        if not behind:
            continue
        marks = marked(marks, clock * SECOND, max(behind), SETTLE * SECOND)
        settled_to = settled(marks, clock * SECOND, SETTLE * SECOND)
        count, below = complete(behind, below, settled_to)
        taken += behind[:count]
        assert len(marks) <= MARKS + 2
        marks = tuple(mark for mark in marks if below is None or mark[1] > below)
    assert taken == [number for number, at in rows if at is not None]


def test_missing_number_is_waited_for_until_it_has_settled() -> None:
    assert complete([1, 2, 3, 5, 6], 0, None) == (3, 3)
    assert complete([5, 6, 8], 3, 4) == (2, 6)
    assert complete([5, 6, 9], 3, 7) == (2, 7)
    assert complete([5, 6, 8], 3, 7) == (3, 8)
    assert complete([8], 3, 6) == (0, 6)
    assert complete([4, 9], None, None) == (0, None)
    assert complete([4, 9], None, 9) == (2, 9)


def test_clock_set_back_settles_nothing_early() -> None:
    marks = marked([(100 * SECOND, 5)], 50 * SECOND, 9, SETTLE * SECOND)
    assert settled(marks, 59 * SECOND, SETTLE * SECOND) is None
    assert settled(marks, 60 * SECOND, SETTLE * SECOND) == 5


def test_state_is_restored_and_refused_for_another_column() -> None:
    state = State("id", "12345678901234567890", marks=((1, 2**70),))
    assert State.of(state.text, "id") == state
    assert State.of("", "id") == State("id")
    with pytest.raises(UserError, match="tracked by id,"):
        State.of(state.text, "other")
    keyed = State("at", "2026", key="o", keyed_by="name")
    assert State.of(keyed.text, "at", "name") == keyed
    for key in (None, "id"):
        with pytest.raises(UserError, match="tracked by at and name,"):
            State.of(keyed.text, "at", key)
    assert State.of(State("at", "2026").text, "at", "id") == State("at", "2026")
    for damaged in ("{", "[]", '{"marks": 1, "column": "id"}', '{"value": "1"}'):
        with pytest.raises(CorruptError):
            State.of(damaged, "id")


def test_rows_of_a_repeated_local_hour_wait_until_it_is_over() -> None:
    """In Berlin 3:00 becomes 2:00 on 2026-10-25, at 1:00 UTC: rows written from then on are behind
    the earlier ones."""
    berlin = ZoneInfo("Europe/Berlin")
    moment = datetime(2026, 10, 24, 20, 7, tzinfo=UTC)
    bounds = []
    while moment < datetime(2026, 10, 25, 6, tzinfo=UTC):
        bound = time_bound(moment, berlin)
        written = [
            time_constant(moment + timedelta(minutes=later), berlin) for later in range(0, 600, 7)
        ]
        assert bound <= min(written)
        bounds.append(bound)
        moment += timedelta(minutes=13)
    assert bounds == sorted(bounds)
    assert time_bound(datetime(2026, 10, 25, 0, 30, tzinfo=UTC), berlin).endswith("02:00:00.000000")
    at = datetime(2026, 7, 1, 12, 0, 0, 1, tzinfo=UTC)
    assert time_bound(at, berlin) == "2026-07-01 14:00:00.000001"
    assert time_bound(at, None) == "2026-07-01 12:00:00.000001+00:00"


class Database:
    """Answers the statements for numbered rows; each page goes through ``change``."""

    def __init__(self, numbers: list[int], change: Callable[[pa.Table, int], QueryResult]) -> None:
        self._numbers = numbers
        self._change = change
        self.statements: list[str] = []

    def __call__(self, statement: str, most_bytes: int) -> QueryResult:
        self.statements.append(statement)
        below = int(statement.partition("q.id > ")[2].split(" ")[0] or 0)
        found = [number for number in self._numbers if number > below]
        if "MAX" in statement:
            top = max(found, default=None)
            clock = pa.array([DUE], pa.timestamp("us", "UTC"))
            text = pa.array([None if top is None else str(top)])
            row = {"flumeng_now": clock, "flumeng_top": pa.array([top], pa.int64())}
            return QueryResult(pa.table(row | {"flumeng_top_text": text}), False)
        found = found[: int(statement.rpartition(" ")[2])]
        rows = {
            "id": pa.array(found, pa.int64()),
            "flumeng_value": pa.array([str(number) for number in found], pa.string()),
            "flumeng_number": pa.array(range(1, len(found) + 1), pa.int64()),
        }
        return self._change(pa.table(rows), most_bytes)

    def close(self) -> None:
        pass


def taken(database: Database, page_rows: int = PAGE_ROWS) -> list[int]:
    poll = SqlPoll(source(track=TrackColumn(column="id", start_from="1")), database, page_rows)
    state, ids, more = "", [], True
    while more:
        answer = poll.ask(state, DUE)
        assert len(answer.bodies) <= page_rows
        ids += [json.loads(body)["id"] for body in answer.bodies.to_pylist()]
        state, more = answer.state, answer.more
    return ids


@pytest.mark.parametrize("page_rows", [1, 2, 7, 100, 101, 1000])
def test_pages_return_each_row_once(page_rows: int) -> None:
    database = Database(list(range(1, 101)), lambda rows, _: QueryResult(rows, False))
    assert taken(database, page_rows) == list(range(1, 101))


def test_database_without_an_order_is_polled_for_fewer_rows() -> None:
    """When they are too many: the first ones are not among those that were read."""

    def backwards(rows: pa.Table, _most: int) -> QueryResult:
        rows = rows.take(list(reversed(range(rows.num_rows))))
        return QueryResult(rows.slice(0, 10), rows.num_rows > 10)

    assert taken(Database(list(range(1, 101)), backwards)) == list(range(1, 101))


def test_answer_that_misnumbers_its_rows_is_refused() -> None:
    def odd(rows: pa.Table, _most: int) -> QueryResult:
        return QueryResult(rows.slice(1), False)

    with pytest.raises(CorruptError, match="does not return row numbers"):
        taken(Database([1, 2, 3], odd))


def test_constants_in_statements_are_quoted() -> None:
    statements = Statements(source(query="SELECT 1 -- all"))
    assert statements.whole() == "SELECT q.* FROM (SELECT 1 -- all\n) q"
    track = TrackColumn(column="at", key="name")
    page = statements.page(track, Position("2026", "o'\\"), "< '2027'", 5)
    assert "q.at >= '2026' AND (q.at > '2026' OR (q.at = '2026' AND q.name > 'o''\\'))" in page
    assert DIALECTS["mysql"].constant("\\' OR 1=1 -- ") == "'\\\\'' OR 1=1 -- '"
    assert DIALECTS["sqlserver"].constant("é") == "N'é'"


def test_texts_that_are_numbers_are_numbers_in_json() -> None:
    field = pa.field("n", pa.string(), metadata=json_text.NUMBER)
    texts = ["1.10", "-0", "NaN", None, "1E+50", "12" * 40, "1;"]
    rows = pa.record_batch([pa.array(texts)], schema=pa.schema([field]))
    assert json_text.rows(rows).to_pylist() == [
        b'{"n":1.10}',
        b'{"n":-0}',
        b"{}",
        b"{}",
        b'{"n":1E+50}',
        b'{"n":' + b"12" * 40 + b"}",
        b"{}",
    ]


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, ["postgresql://db.example/shop"]),
        ({"query": "SELECT 1"}, ["postgresql://db.example/shop"]),
        ({"url": "jdbc:mysql://db:3306/shop", "query": "SELECT 1"}, ["mysql://db:3306"]),
        (
            {"url": "jdbc:sqlserver://db;databaseName=shop", "table": "hr.dbo.people"},
            ["sqlserver://db/shop", "sqlserver://db/hr"],
        ),
    ],
)
def test_needed_permissions_are_the_database_and_the_answer_directory(
    options: dict[str, object], needs: list[str]
) -> None:
    """But in PostgreSQL a statement may read any database of its server."""
    wanted = [("input", place) for place in needs] + [("output", "/tmp/answers")]
    assert list(source(**options).needs()) == wanted


COMMON = f"url: '{URL}', schedule: {{every_seconds: 60}}, answers: {{path: /a}}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "expected either table or query"),
        ("table: a, query: SELECT 1", "expected either table or query"),
        ("query: 'SELECT 1;'", "without a semicolon"),
        ("table: 'a; DROP TABLE b'", "expected a table"),
        ("table: a, track: {column: 'a b'}", "expected a column"),
        ("table: a, password: x", "reference to a secret"),
        ("table: a, password: '${secret:x}'", "needs a username"),
        ("table: a, track: {column: a, start_from: soon}", "expected a number, or a time"),
        ("table: a, track: {column: a, start_from: 2026-11-26}", "expected a number, or a time"),
        ("table: a, track: {column: a, kind: timestamp, start_from: 1}", "the kind timestamp"),
        ("table: a, properties: {autoDeserialize: 'true'}", "expected one of"),
    ],
)
def test_invalid_options_are_refused(given: str, message: str) -> None:
    flow = f"flow: a\nsources:\n  - sql_poll: {{{COMMON}, {given}}}\nsinks:\n  - noop: {{}}\n"
    with pytest.raises(SpecError, match=message):
        check_flow(flow)


def test_arrival_guarantee_follows_the_tracking_options() -> None:
    assert source().arrival() == "all rows are taken at each due time"
    assert "open for less than 60 s" in source(track=TrackColumn(column="id")).arrival()
    assert (source().weighed, source().local, source().local_path) == (True, True, "/tmp/answers")
