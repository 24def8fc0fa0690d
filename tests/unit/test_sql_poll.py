"""Which rows of a database are taken when, without a database. What a real one does is in
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
from flumeng.connectors.polls import sql_poll
from flumeng.connectors.polls.options import Answers, Schedule
from flumeng.connectors.polls.sql_options import SqlPollSource, TrackColumn
from flumeng.connectors.polls.sql_poll import Found, SqlPoll
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
from flumeng.connectors.polls.sql_statements import DIALECTS, Place, Statements
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
def test_whatever_order_transactions_commit_in_each_number_is_taken_once(
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


def test_what_is_missing_is_waited_for_until_it_has_settled() -> None:
    assert complete([1, 2, 3, 5, 6], 0, None) == (3, 3)
    assert complete([5, 6, 8], 3, 4) == (2, 6)
    assert complete([5, 6, 9], 3, 7) == (2, 7)
    assert complete([5, 6, 8], 3, 7) == (3, 8)
    assert complete([8], 3, 6) == (0, 6)
    assert complete([4, 9], None, None) == (0, None)
    assert complete([4, 9], None, 9) == (2, 9)


def test_a_clock_that_is_set_back_makes_nothing_settle_early() -> None:
    marks = marked([(100 * SECOND, 5)], 50 * SECOND, 9, SETTLE * SECOND)
    assert settled(marks, 59 * SECOND, SETTLE * SECOND) is None
    assert settled(marks, 60 * SECOND, SETTLE * SECOND) == 5


def test_a_state_is_kept_and_that_of_another_column_refused() -> None:
    state = State("id", "12345678901234567890", marks=((1, 2**70),))
    assert State.of(state.text, "id") == state
    assert State.of("", "id") == State("id")
    with pytest.raises(UserError, match="by id so far"):
        State.of(state.text, "other")
    keyed = State("at", "2026", key="o", keyed_by="name")
    assert State.of(keyed.text, "at", "name") == keyed
    for key in (None, "id"):
        with pytest.raises(UserError, match="by at and name so far"):
            State.of(keyed.text, "at", key)
    assert State.of(State("at", "2026").text, "at", "id") == State("at", "2026")
    for damaged in ("{", "[]", '{"marks": 1, "column": "id"}', '{"value": "1"}'):
        with pytest.raises(CorruptError):
            State.of(damaged, "id")


def test_where_the_clock_is_set_back_rows_wait_until_it_is_over() -> None:
    """In Berlin 3:00 becomes 2:00 on 2026-10-25, at 1:00 UTC: what is written from then on is
    behind whatever was before."""
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

    def __init__(self, numbers: list[int], change: Callable[[pa.Table, int], Found]) -> None:
        self._numbers = numbers
        self._change = change
        self.statements: list[str] = []

    def __call__(self, statement: str, most_bytes: int) -> Found:
        self.statements.append(statement)
        below = int(statement.partition("q.id > ")[2].split(" ")[0] or 0)
        found = [number for number in self._numbers if number > below]
        if "MAX" in statement:
            top = max(found, default=None)
            clock = pa.array([DUE], pa.timestamp("us", "UTC"))
            text = pa.array([None if top is None else str(top)])
            row = {"flumeng_now": clock, "flumeng_top": pa.array([top], pa.int64())}
            return Found(pa.table(row | {"flumeng_top_text": text}), False)
        found = found[: int(statement.rpartition(" ")[2])]
        rows = {
            "id": pa.array(found, pa.int64()),
            "flumeng_value": pa.array([str(number) for number in found], pa.string()),
            "flumeng_number": pa.array(range(1, len(found) + 1), pa.int64()),
        }
        return self._change(pa.table(rows), most_bytes)

    def close(self) -> None:
        pass


def taken(database: Database) -> list[int]:
    poll = SqlPoll(source(track=TrackColumn(column="id", start_from="1")), database)
    state, ids, more = "", [], True
    while more:
        answer = poll.ask(state, DUE)
        ids += [json.loads(body)["id"] for body in answer.bodies.to_pylist()]
        state, more = answer.state, answer.more
    return ids


@pytest.mark.parametrize("page_rows", [1, 2, 7, 100, 101, 1000])
def test_pages_have_each_row_once(page_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_poll, "PAGE_ROWS", page_rows)
    database = Database(list(range(1, 101)), lambda rows, _: Found(rows, False))
    assert taken(database) == list(range(1, 101))


def test_a_database_that_gives_rows_in_any_order_is_asked_for_fewer() -> None:
    """When they are too many: the first ones are not among those that were read."""

    def backwards(rows: pa.Table, _most: int) -> Found:
        rows = rows.take(list(reversed(range(rows.num_rows))))
        return Found(rows.slice(0, 10), rows.num_rows > 10)

    assert taken(Database(list(range(1, 101)), backwards)) == list(range(1, 101))


def test_rows_that_are_numbered_in_another_way_are_not_taken() -> None:
    def odd(rows: pa.Table, _most: int) -> Found:
        return Found(rows.slice(1), False)

    with pytest.raises(CorruptError, match="numbers rows in another way"):
        taken(Database([1, 2, 3], odd))


def test_statements_are_bounded_by_constants_that_cannot_be_more() -> None:
    statements = Statements(source(query="SELECT 1 -- all"))
    assert statements.whole() == "SELECT q.* FROM (SELECT 1 -- all\n) q"
    track = TrackColumn(column="at", key="name")
    page = statements.page(track, Place("2026", "o'\\"), "< '2027'", 5)
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
def test_what_a_node_may_refuse(options: dict[str, object], needs: list[str]) -> None:
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
def test_what_is_refused_before_it_runs(given: str, message: str) -> None:
    flow = f"flow: a\nsources:\n  - sql_poll: {{{COMMON}, {given}}}\nsinks:\n  - noop: {{}}\n"
    with pytest.raises(SpecError, match=message):
        check_flow(flow)


def test_what_it_promises() -> None:
    assert source().arrival() == "all rows are taken at each due time"
    assert "open for less than 60 s" in source(track=TrackColumn(column="id")).arrival()
    assert (source().weighed, source().local, source().local_path) == (True, True, "/tmp/answers")
