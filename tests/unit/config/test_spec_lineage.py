"""Where an event goes must not depend on a table that changes before a batch is repeated."""

from __future__ import annotations

import pytest

from flumeng.config import check_flow
from flumeng.config.guarantees import promise
from flumeng.platform.options.problems import SpecError

TABLE = "{csv: /x.csv, schema: 'app STRING, team STRING'}"
LOOKUP = f"{{lookup: {{on: [app], table: {TABLE}}}}}"
SQL = f"query: '{{query}}', tables: {{{{apps: {TABLE.replace('{', '{{').replace('}', '}}')}}}}}"
TEXT = """\
flow: web
sources: [syslog: {{listen: "127.0.0.1:0"}}]
delivery: {delivery}
filters:
  - parse: {{format: json, schema: "app STRING, day STRING"}}
{filters}
sinks: [elasticsearch: {{hosts: ["http://127.0.0.1:9200"], index: "{index}"{more}}}]
"""


def flow(
    *filters: str, index: str = "logs-{app}-%Y", more: str = "", delivery: str = "exactly-once"
) -> str:
    lines = "\n".join(f"  - {one}" for one in filters)
    return TEXT.format(filters=lines, index=index, more=more, delivery=delivery)


def sql(query: str) -> str:
    return "sql: {" + SQL.format(query=query) + "}"


@pytest.mark.parametrize(
    ("filters", "column"),
    [
        ([LOOKUP], "team"),
        ([LOOKUP, "rename: {team: t}"], "t"),
        ([LOOKUP, 'set: {t: "x-{team}"}'], "t"),
        ([LOOKUP, 'set: {app: "{team}"}'], "app"),
        ([LOOKUP, "select: [ts, host, upper(team) AS t]"], "t"),
        ([LOOKUP, "{set: {app: other}, when: \"team = 'x'\"}"], "app"),
        ([LOOKUP, "time: {column: team}"], "ts"),
        ([LOOKUP, "sql: SELECT *, lower(team) AS t FROM events"], "t"),
        ([sql("SELECT e.*, a.team FROM events e LEFT JOIN apps a ON e.app = a.app")], "team"),
        ([sql("SELECT e.host, a.app FROM events e LEFT JOIN apps a ON e.app = a.app")], "app"),
        (["geoip: {column: app, database: /x.mmdb, fields: {land: country.iso_code}}"], "land"),
    ],
)
def test_destination_from_a_table_is_refused_for_exactly_once(
    filters: list[str], column: str
) -> None:
    filters = [one.removeprefix("{").removesuffix("}") if one == LOOKUP else one for one in filters]
    index = "logs-%Y" if column == "ts" else f"logs-{{{column}}}"
    with pytest.raises(SpecError, match=f"elasticsearch places events by {column}, which comes"):
        check_flow(flow(*filters, index=index))
    if column != "ts":
        with pytest.raises(SpecError, match=f"places events by {column}"):
            check_flow(flow(*filters, index="logs", more=f", routing: {column}"))
    spec = check_flow(flow(*filters, index=index, delivery="at-least-once"))
    said = [line for line in promise(spec) if line.startswith("elasticsearch:")]
    assert said == [
        f"elasticsearch: events are placed by {column}, which comes from a table; when "
        "the table has changed, an event that is written again is there twice."
    ]


@pytest.mark.parametrize(
    "filters",
    [
        [LOOKUP],
        [LOOKUP, "where: \"team = 'x'\""],
        [LOOKUP, "select: ['*', upper(team) AS t]"],
        [sql("SELECT e.*, a.team FROM events e LEFT JOIN apps a ON e.app = a.app")],
        [sql("SELECT e.ts, e.app, a.team FROM events e LEFT JOIN apps a ON e.app = a.app")],
        [LOOKUP, "sql: SELECT * FROM events"],
        [LOOKUP, 'set: {other: "{team}"}'],
    ],
)
def test_destination_from_the_event_itself_is_accepted(filters: list[str]) -> None:
    filters = [one.removeprefix("{").removesuffix("}") if one == LOOKUP else one for one in filters]
    spec = check_flow(flow(*filters))
    assert any("each event once" in line for line in promise(spec))


@pytest.mark.parametrize(
    ("filters", "options", "message"),
    [
        ([], {"index": "logs-{ap}"}, "index and routing need the column ap"),
        ([], {"index": "logs", "more": ", routing: ap"}, "index and routing need the column ap"),
        ([], {"index": "logs-{body}"}, "body is a binary, which no index name can hold"),
        (["select: [app]"], {"index": "logs-%Y"}, "index and routing need the column ts"),
        (["select: [app, app AS _id]"], {"index": "logs"}, "_id is reserved by Elasticsearch"),
        (["set: {_source: x}"], {"index": "logs"}, "_source is reserved by Elasticsearch"),
    ],
)
def test_columns_that_do_not_fit_documents_are_reported(
    filters: list[str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        check_flow(flow(*filters, **options))
