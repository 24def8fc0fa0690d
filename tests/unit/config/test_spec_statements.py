"""Statements in Spark SQL, checked by their text alone."""

from __future__ import annotations

import pytest

from flumeng.config import SpecError, check_flow, statements
from flumeng.config.column_kinds import EVENT, Kind
from flumeng.config.expressions import columns_of_ddl
from flumeng.filters.options.parse import SYSLOG
from tests.testkit.expressions import STATEMENT_ATTEMPTS, STATEMENTS, TABLES

COLUMNS = {**EVENT, **SYSLOG}
KINDS = {name: columns_of_ddl(text) for name, text in TABLES.items()}


def given(text: str) -> dict[str, Kind]:
    return statements.check(text, COLUMNS, KINDS)


@pytest.mark.parametrize("text", STATEMENTS)
def test_valid_statements_are_accepted(text: str) -> None:
    given(text)


@pytest.mark.parametrize(("text", "said"), STATEMENT_ATTEMPTS)
def test_statement_that_leaves_its_bounds_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        given(text)
    assert str(caught.value).startswith(said)


def test_a_statement_gives_its_columns_in_order_with_their_kinds() -> None:
    found = given(
        "WITH t AS (SELECT app, count(*) AS n, max(ts) AS last FROM events GROUP BY app) "
        "SELECT t.*, a.team, a.rank / 2 AS half FROM t LEFT JOIN apps a USING (app)"
    )
    assert {name: kind.name for name, kind in found.items()} == {
        "app": "string",
        "n": "integer",
        "last": "timestamp",
        "team": "string",
        "half": "fraction",
    }


def test_identity_columns_of_events_are_available_and_hidden() -> None:
    found = given("SELECT e.app, e.__journal, e.__seq, e.__split FROM (SELECT * FROM events) e")
    assert list(found) == ["app"]
    with pytest.raises(ValueError, match=r"no column e\.__seq"):
        given("SELECT e.__seq FROM (SELECT app FROM events) e")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT host, 'x' AS __journal, 1 AS __seq, 0 AS __split FROM events",
        "SELECT seq AS __SEQ FROM events",
        "SELECT __split AS __seq FROM events",
        "SELECT __journal, max(__seq) AS __seq FROM events GROUP BY __journal",
        "WITH t (__seq) AS (SELECT seq FROM events) SELECT __seq FROM t",
        "SELECT a.__journal, b.__seq FROM events a JOIN events b ON a.host = b.host",
        "SELECT a.*, b.__seq FROM (SELECT __journal, host FROM events) a JOIN events b "
        "ON a.host = b.host",
        "SELECT host, __journal FROM events UNION ALL SELECT __journal, host FROM events",
    ],
)
def test_identity_columns_come_from_the_event_only(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"identity of events|identify an event|in the same places"
    ):
        given(text)


def test_table_with_identity_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="identity of events"):
        statements.check("SELECT * FROM events", COLUMNS, {"t": {"__seq": Kind("integer")}})


FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:0"}}]
delivery: %s
filters: [sql: %s]
sinks: [%s]
"""
UNSTEADY = (
    ("SELECT * FROM events LIMIT 10", "LIMIT"),
    ("SELECT * FROM events ORDER BY ts LIMIT 10", "LIMIT"),
    ("SELECT * FROM events ORDER BY ts, __journal, __seq LIMIT 10", None),
    ("SELECT * FROM events WHERE host IN (SELECT host FROM events LIMIT 1)", "LIMIT"),
    ("SELECT * FROM (SELECT *, row_number() OVER (ORDER BY ts) AS n FROM events) e", "row_number"),
    ("SELECT *, row_number() OVER (ORDER BY __journal, __seq DESC) AS n FROM events", None),
    ("SELECT *, lag(host) OVER (PARTITION BY __journal ORDER BY __seq) AS n FROM events", None),
    ("SELECT *, rank() OVER (ORDER BY ts) AS n FROM events", None),
    ("SELECT *, max_by(host, ts) OVER () AS n FROM events", "max_by"),
    ("SELECT *, sum(severity) OVER (ORDER BY ts) AS n FROM events", None),
    (
        "SELECT *, sum(severity) OVER (ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS n "
        "FROM events",
        "ROWS",
    ),
    ("SELECT *, count(*) OVER (PARTITION BY host) AS n FROM events", None),
)


@pytest.mark.parametrize(("text", "found"), UNSTEADY)
def test_statement_that_may_choose_other_events_in_a_repeat_is_detected(
    text: str, found: str | None
) -> None:
    given(text)
    assert statements.unsteady(text) == found


SEARCH = "elasticsearch: {hosts: ['http://127.0.0.1:1'], index: web}"
FUNCTION = "python: {function: 'shop.sinks:write', idempotent: %s}"


@pytest.mark.parametrize(
    ("delivery", "sink", "accepted"),
    [
        ("exactly-once", SEARCH, False),
        ("at-least-once", SEARCH, True),
        ("exactly-once", "files: {path: /lake}", True),
        ("exactly-once", FUNCTION % "true", False),
        ("at-least-once", FUNCTION % "false", False),
        ("at-least-once", "noop", True),
    ],
)
def test_unsteady_statement_is_refused_before_sinks_that_need_the_same_events(
    delivery: str, sink: str, accepted: bool
) -> None:
    flow = FLOW % (delivery, "'SELECT * FROM events LIMIT 10'", sink)
    if accepted:
        check_flow(flow)
        return
    with pytest.raises(SpecError, match="LIMIT of the filter sql may choose other events"):
        check_flow(flow)


def doubling(levels: int) -> str:
    parts = ["a0 AS (SELECT seq FROM events)"]
    for n in range(levels):
        parts.append(f"a{n + 1} AS (SELECT * FROM a{n} UNION ALL SELECT * FROM a{n})")
    return f"WITH {', '.join(parts)} SELECT * FROM a{levels}"


def test_exponential_use_of_tables_is_bounded() -> None:
    given(doubling(3))
    with pytest.raises(ValueError, match="the statement reads tables more than 64 times"):
        given(doubling(100))
    unions = " UNION ALL ".join(["SELECT seq FROM events"] * 33)
    given(unions)
    with pytest.raises(ValueError, match="the statement reads tables more than 64 times"):
        given(f"SELECT seq FROM ({unions}) a WHERE seq IN ({unions})")


def test_values_cannot_grow_through_several_selects() -> None:
    text = "SELECT replace(app, 'a', 'xxxxxxxxxxxxxxxxxxx') AS app FROM"
    assert given(f"{text} (SELECT app FROM events) e")
    with pytest.raises(ValueError, match="times the size of the event"):
        given(f"{text} ({text} events) e")


def test_flow_may_have_a_statement_alone_and_later_stages_see_its_columns() -> None:
    check_flow(FLOW % ("at-least-once", '"SELECT host, ts FROM events"', "noop"))
    sink = "files: {path: '/lake/{app}'}"
    with pytest.raises(SpecError, match="needs the column app"):
        check_flow(FLOW % ("at-least-once", "'SELECT host FROM events'", sink))


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("{events: {csv: /x, schema: 'a INT'}}", "other than events"),
        ("{a b: {csv: /x, schema: 'a INT'}}", "expected a name of letters"),
        ("{a: {csv: /x, schema: 'a INT'}, A: {csv: /x, schema: 'a INT'}}", "only in case"),
        (
            "{a: {csv: /x, schema: 'a INT', refresh_seconds: 2 h}}",
            "stale_seconds of at least refresh_seconds",
        ),
    ],
)
def test_invalid_tables_are_reported(tables: str, said: str) -> None:
    options = f"{{query: 'SELECT * FROM events', tables: {tables}}}"
    with pytest.raises(SpecError, match=said):
        check_flow(FLOW % ("at-least-once", options, "noop"))


def test_requests_do_not_depend_on_a_changing_table() -> None:
    sink = "http: {url: 'http://127.0.0.1:1/x', idempotent: true}"
    table = "{csv: /x, schema: 'host STRING, a INT'}"
    options = f"{{query: 'SELECT * FROM events JOIN t USING (host)', tables: {{t: {table}}}}}"
    check_flow(FLOW % ("at-least-once", options, sink))
    check_flow(FLOW % ("exactly-once", "'SELECT * FROM events'", sink))
    with pytest.raises(SpecError, match="a table that was read again changes that"):
        check_flow(FLOW % ("exactly-once", options, sink))
