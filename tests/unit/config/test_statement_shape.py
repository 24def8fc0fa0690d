"""The columns that a statement uses, and whether its rows stay with their events."""

from __future__ import annotations

import pytest

from flumeng.config import sql_text, statement_shape
from tests.testkit.expressions import TABLES

JOINED = "SELECT e.seq FROM events e {} hosts h ON e.host = h.host"
CHOSEN = "SELECT seq FROM events WHERE {}"


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("SELECT * FROM events", None),
        ("SELECT e.* FROM events e JOIN hosts h ON e.host = h.host", None),
        ("SELECT x.seq FROM (SELECT * FROM events) x", None),
        ("SELECT seq FROM events WHERE host IN (SELECT h.* FROM events h)", None),
        ("SELECT count(*) AS n FROM events", {"n"}),
        ("SELECT Seq, attrs.peer AS p FROM events", {"seq", "attrs", "peer", "p"}),
        ("SELECT e.attrs['k'] AS k FROM events e", {"attrs", "e", "k"}),
        ("SELECT e.seq, h.* FROM events e JOIN hosts h USING (host)", {"seq", "e", "h", "host"}),
        ("WITH t AS (SELECT seq FROM events) SELECT * FROM t", {"t", "seq"}),
    ],
)
def test_columns_of_events_that_a_statement_may_read(text: str, used: set[str] | None) -> None:
    found = statement_shape.used(sql_text.parse_query(text))
    assert (found if found is None else found - {"events", "hosts"}) == used


@pytest.mark.parametrize(
    ("text", "in_place"),
    [
        ("SELECT host FROM events WHERE seq > 1", True),
        ("(SELECT host FROM events)", True),
        (JOINED.format("JOIN"), True),
        (JOINED.format("INNER JOIN"), True),
        (JOINED.format("LEFT OUTER JOIN"), True),
        (JOINED.format("LEFT SEMI JOIN"), True),
        (JOINED.format("LEFT ANTI JOIN"), True),
        (JOINED.format("RIGHT JOIN"), False),
        (JOINED.format("FULL OUTER JOIN"), False),
        ("SELECT e.seq FROM hosts h JOIN events e ON e.host = h.host", True),
        ("SELECT e.seq FROM hosts h RIGHT JOIN events e ON e.host = h.host", True),
        ("SELECT e.seq FROM hosts h LEFT JOIN events e ON e.host = h.host", False),
        ("SELECT h.rack FROM hosts h LEFT SEMI JOIN events e ON e.host = h.host", False),
        ("SELECT a.seq FROM events a JOIN events b ON a.seq = b.seq", False),
        (
            "SELECT e.seq FROM hosts h JOIN apps a ON a.rank = h.rack JOIN events e "
            "ON e.host = h.host",
            False,
        ),
        (
            "SELECT e.seq FROM events e JOIN (SELECT host, max(rack) AS r FROM hosts GROUP BY "
            "host) h ON e.host = h.host",
            True,
        ),
        (
            "SELECT e.seq FROM events e JOIN (SELECT h.host FROM hosts h JOIN apps a ON "
            "h.rack = a.rank) x ON e.host = x.host",
            False,
        ),
        ("WITH h AS (SELECT * FROM hosts) " + JOINED.format("JOIN").replace("hosts h", "h"), False),
        (
            "WITH e AS (SELECT * FROM events) " + JOINED.format("JOIN").replace("events e", "e"),
            True,
        ),
        (
            "SELECT e.seq FROM events e JOIN (SELECT host FROM hosts WHERE host IN (SELECT host "
            "FROM events)) h ON e.host = h.host",
            False,
        ),
        (CHOSEN.format("host IN (SELECT host FROM hosts)"), True),
        (CHOSEN.format("host NOT IN (SELECT host FROM hosts) OR seq = 1"), True),
        (CHOSEN.format("NOT EXISTS (SELECT rack FROM hosts WHERE rack = 7)"), True),
        (CHOSEN.format("host IN (SELECT host FROM events)"), False),
        (CHOSEN.format("host IN (SELECT h.host FROM hosts h JOIN apps a ON a.rank = 1)"), False),
        (CHOSEN.format("host IN (SELECT host FROM hosts UNION SELECT app FROM apps)"), False),
        ("SELECT seq, host IN (SELECT host FROM hosts) AS x FROM events", False),
        ("SELECT max(seq) AS m FROM events", False),
        ("SELECT host FROM events GROUP BY host", False),
        ("SELECT DISTINCT host FROM events", False),
        ("SELECT host FROM events ORDER BY host LIMIT 5", False),
        ("SELECT host FROM events LIMIT 5", False),
        ("SELECT host FROM events OFFSET 5", False),
        ("SELECT rank() OVER (ORDER BY seq) AS r FROM events", False),
        ("SELECT CASE WHEN max(seq) > 3 THEN 1 ELSE 0 END AS x FROM events", False),
        ("SELECT host FROM events UNION ALL SELECT host FROM events", False),
        ("SELECT x.host FROM (SELECT host FROM events LIMIT 3) x", False),
    ],
)
def test_rows_stay_with_their_events(text: str, in_place: bool) -> None:
    assert statement_shape.in_place(sql_text.parse_query(text), TABLES) == in_place
