"""Filters in a real Spark over a real journal: the rows and columns that each adds, drops or
refuses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flumeng.config.component import Component
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.journals.reader import JournalReader
from flumeng.connectors.ranged.reading import ReadSplits
from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import EVENT_SCHEMA, READ_SCHEMA
from flumeng.filters import arrow_text
from flumeng.filters.options.parse import Parse
from flumeng.filters.options.select import Select
from flumeng.filters.options.where import Where
from flumeng.filters.parse import ParseFilter
from flumeng.filters.segments import Step
from flumeng.filters.select import SelectFilter
from flumeng.filters.where import WhereFilter
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import UserError

RECEIVED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
JOURNAL = "web.n1.0.00000000"

Frames = Callable[..., LazyBatch]


@pytest.fixture
def frame(spark: SparkSession, tmp_path: Path) -> Iterator[Frames]:
    """Makes a frame over a journal that holds these bodies."""
    journal = Journal.create(tmp_path, JOURNAL)
    server = JournalServer("127.0.0.1", journals=lambda: {JOURNAL: journal})

    def build(*bodies: bytes, identified: bool = False) -> LazyBatch:
        count = len(bodies)
        columns = [
            pa.array(bodies, pa.binary()),
            pa.array([RECEIVED] * count, pa.timestamp("us", "UTC")),
            pa.array(["192.0.2.1"] * count),
            pa.array([[("source", "syslog")]] * count, pa.map_(pa.string(), pa.string())),
        ]
        journal.append(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
        end = journal.sync()
        ranges = Range(JOURNAL, 0, end // 2), Range(JOURNAL, end // 2, end)
        splits = tuple((piece,) for piece in ranges if piece.events)
        read = ReadSplits(JournalReader(), splits, {JOURNAL: server.address}, identified)
        return LazyBatch.of_splits(spark, len(splits), read, read.schema)

    yield build
    server.stop()
    journal.close()


def rows(frame: LazyBatch) -> list[dict[str, Any]]:
    found = [row.asDict() for row in frame.rows().collect()]
    return sorted(found, key=lambda row: row.get("seq", 0))


SYSLOG = Parse("syslog")
LINES = (
    b"<34>1 2026-02-27T22:14:15.003Z mymachine su - ID47 - failed \xff",
    b"<165>Feb 24 05:34:00 router myproc[10]: up",
    b"junk",
)


def test_syslog_adds_columns_and_keeps_events_that_do_not_parse(frame: Frames) -> None:
    found = rows(ParseFilter(SYSLOG).apply(frame(*LINES)))
    assert [row["severity"] for row in found] == [2, 5, None]
    assert [row["app"] for row in found] == ["su", "myproc", None]
    assert [row["message"] for row in found] == ["failed \ufffd", "up", None]
    assert [row["host"] for row in found] == ["mymachine", "router", "192.0.2.1"]
    assert [row["body"] for row in found] == list(LINES)
    assert [row["seq"] for row in found] == [0, 1, 2]
    assert [row["attrs"] for row in found] == [
        {"source": "syslog"},
        {"source": "syslog"},
        {"source": "syslog", "parse_error": "syslog: no priority"},
    ]
    assert found[2]["ts"].replace(tzinfo=UTC) == RECEIVED


@pytest.mark.parametrize("condition", ["host = '192.0.2.1'", "substr(host, 1, 3) = '192'"])
def test_filter_with_a_condition_changes_matching_events_only(
    frame: Frames, condition: str
) -> None:
    parse = Component("filter", "parse", SYSLOG, f"{condition} AND seq > 0")
    where = Component("filter", "where", Where("severity > 9"), "seq < 2")
    parsed = Step.of(parse).apply(frame(*LINES))
    found = rows(Step.of(where).apply(parsed))
    assert [(row["seq"], row["severity"]) for row in found] == [(2, None)]
    found = rows(parsed)
    assert [(row["seq"], row["app"]) for row in found] == [(0, None), (1, "myproc"), (2, None)]
    assert [row["body"] for row in found] == list(LINES)


def test_sql_and_arrow_stages_follow_each_other_in_any_order(frame: Frames) -> None:
    first = WhereFilter(Where("length(body) > 4")).apply(frame(*LINES))
    parsed = ParseFilter(SYSLOG).apply(first)
    kept = WhereFilter(Where("severity <= 4")).apply(parsed)
    chosen = SelectFilter(Select(("seq", "upper(app) AS app", "body"))).apply(kept)
    assert rows(chosen) == [{"seq": 0, "app": "SU", "body": LINES[0]}]


@pytest.mark.parametrize(
    ("chosen", "columns", "in_arrow"),
    [
        (("app", "host AS journal"), ["app", "journal"], True),
        (("app", "upper(app) AS journal"), ["app", "journal"], False),
        (("*", "seq + 1 AS next"), None, False),
    ],
)
def test_identity_columns_stay_behind_parse_where_and_select(
    frame: Frames, chosen: tuple[str, ...], columns: list[str] | None, in_arrow: bool
) -> None:
    batch = ParseFilter(SYSLOG).apply(frame(*LINES, identified=True))
    batch = SelectFilter(Select(chosen)).apply(WhereFilter(Where("seq > 0")).apply(batch))
    assert (batch.all_arrow is not None) == in_arrow
    found = sorted(row.asDict()[identity.SEQ] for row in batch.rows().collect())
    assert found == [1, 2]
    assert {(row[identity.JOURNAL], row[identity.SPLIT]) for row in batch.rows().collect()} == {
        (JOURNAL, 1)
    }
    plain = batch.without_identity()
    assert columns is None or plain.rows().columns == columns
    assert not set(plain.rows().columns) & set(identity.COLUMNS)


def test_condition_that_cannot_be_computed_drops_the_event_and_not_the_batch(frame: Frames) -> None:
    kept = WhereFilter(Where("cast(cast(body AS string) AS int) > 1")).apply(
        frame(b"x", b"2", b"1")
    )
    assert [row["body"] for row in rows(kept)] == [b"2"]


@pytest.mark.parametrize(("text", "kept"), [("1 = 1", 3), ("1 = 1 and 2 > 3", 0), ("true", 3)])
def test_condition_without_columns_runs(frame: Frames, text: str, kept: int) -> None:
    assert len(rows(WhereFilter(Where(text)).apply(frame(*LINES)))) == kept


def test_neighbouring_arrow_stages_are_one_step_in_spark(frame: Frames) -> None:
    parsed = ParseFilter(Parse("regex", "(?P<first>.)")).apply(
        ParseFilter(SYSLOG).apply(frame(b"x"))
    )
    plan = parsed.rows()._jdf.queryExecution().executedPlan().toString()
    assert plan.count("MapInArrow") == 1


def test_a_pattern_adds_a_column_for_each_name(frame: Frames) -> None:
    pattern = r"^(?P<who>\S+) (?P<number>[0-9]+)?"
    found = rows(
        ParseFilter(Parse("regex", pattern)).apply(frame(b"ann 12", "jörg x".encode(), b""))
    )
    assert [(row["who"], row["number"]) for row in found] == [
        ("ann", "12"),
        ("jörg", ""),
        (None, None),
    ]
    assert [row["attrs"].get("parse_error") for row in found] == [None, None, "regex: no match"]


JSON_LINES = (
    b'{"user": "ann", "ms": 1.5, "ts": "2026-02-27T03:04:05Z", "host": "app1"}',
    b'{"user": "bob"}',
    b'{"user": ',
    b"",
    b"[]x",
    b'{"ms": "slow"}',
    b'{"user": "caf\xe9"}',
)
DDL = "user STRING, ms DOUBLE, ts TIMESTAMP, host STRING"


def test_json_adds_columns_sets_ts_and_host_and_marks_malformed_bodies(frame: Frames) -> None:
    found = rows(ParseFilter(Parse("json", schema=DDL)).apply(frame(*JSON_LINES)))
    assert [row["user"] for row in found] == ["ann", "bob", None, None, None, None, "caf\ufffd"]
    assert [row["ms"] for row in found] == [1.5, None, None, None, None, None, None]
    assert [row["host"] for row in found] == ["app1", *["192.0.2.1"] * 6]
    assert found[0]["ts"].replace(tzinfo=UTC) == datetime(2026, 2, 27, 3, 4, 5, tzinfo=UTC)
    assert found[1]["ts"].replace(tzinfo=UTC) == RECEIVED
    assert ["parse_error" in row["attrs"] for row in found] == [False, False, *[True] * 4, False]
    assert [row["body"] for row in found] == list(JSON_LINES)


def test_json_time_far_from_the_receive_time_is_refused(frame: Frames) -> None:
    times = ("2026-03-08T12:00:00Z", "2026-03-08T12:00:01Z", "0001-01-01T00:00:00Z")
    bodies = [f'{{"user": "ann", "ts": "{time}"}}'.encode() for time in times]
    found = rows(ParseFilter(Parse("json", schema=DDL)).apply(frame(*bodies)))
    assert [row["ts"].replace(tzinfo=UTC) == RECEIVED for row in found] == [False, True, True]
    assert [row["attrs"].get("ts_refused") for row in found] == [
        None,
        *(f"{time[:-1]}.000000Z" for time in times[1:]),
    ]
    assert [row["user"] for row in found] == ["ann"] * 3


def test_json_must_be_the_whole_body_and_fit_the_schema(frame: Frames) -> None:
    bodies = (
        b'{"user": "ann"}',
        b' {"user": "ann"}\n',
        b"{}}",
        b'{"user": "ann"} x',
        b'{"user": "ann"}#',
        b"{'user': 'ann'}",
        b'["user"]',
        b"1",
        b'{"ms": "slow"}',
        b'{"user": "\\ud83d"}',
    )
    found = rows(ParseFilter(Parse("json", schema="user STRING, ms DOUBLE")).apply(frame(*bodies)))
    malformed, other = "json: malformed", "json: not of the schema"
    assert [row["attrs"].get("parse_error") for row in found] == [
        None, None, *[malformed] * 4, *[other] * 2, 'json: ms is no DOUBLE: "slow"', None,
    ]  # fmt: skip
    assert [row["user"] for row in found] == ["ann", "ann", *[None] * 7, "\ufffd"]
    assert [row["body"] for row in found] == list(bodies)
    assert set(found[0]) == {*READ_SCHEMA.names, "user", "ms"}


def test_syslog_after_json_keeps_the_parse_error_of_json(frame: Frames) -> None:
    first = ParseFilter(Parse("json", schema="user STRING")).apply(frame(b"junk"))
    (found,) = rows(ParseFilter(SYSLOG).apply(first))
    assert found["attrs"]["parse_error"] == "json: malformed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Parse("json", schema="user STRNG,"), "not a list of columns"),
        (Parse("json", schema="INT"), "not a list of columns"),
        (Parse("json", schema="body STRING"), "column body exists already"),
        (Parse("json", schema="ts STRING"), "event column ts must have the type"),
        (Parse("regex", "(?P<host>.)"), "column host exists already"),
        (Parse("regex", "(?P<a>.)("), "parse:"),
    ],
)
def test_parse_options_that_do_not_fit_are_refused(
    frame: Frames, options: Parse, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        ParseFilter(options).apply(frame(b"x"))


def test_workers_keep_freed_arrow_memory(spark: SparkSession) -> None:
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(_memory_settings, "said string").collect()
    assert row.said == f"{32 * 2**20} {64 * 2**20}"


def _memory_settings(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    said = " ".join(os.environ.get(name, "none") for name in names)
    yield pa.RecordBatch.from_pydict({"said": [said]})


def test_parse_behind_select_names_the_missing_column(frame: Frames) -> None:
    chosen = SelectFilter(Select(("body", "ts"))).apply(frame(b"x"))
    with pytest.raises(UserError, match="needs the column host"):
        ParseFilter(SYSLOG).apply(chosen)


CONDITIONS = {
    "severity <= 4": True,
    "Severity > 4": True,
    "not severity > 4": True,
    "severity = 5 or app = 'myproc'": True,
    "severity is null or app = 'su'": True,
    "not (severity is null and app <> 'su')": True,
    "app in ('su', 'x')": True,
    "app not in ('su', 'x')": True,
    "not app in ('su')": True,
    "seq > 0": True,
    "seq >= 1 and seq < 2 or replayed": True,
    "not replayed": True,
    "replayed = false": True,
    "app < 'n'": True,
    "app = procid": True,
    "attrs['parse_error'] is null": True,
    "attrs.source = 'syslog' and attrs['nothing'] is null": True,
    "attrs['parse_error'] = 'syslog: no priority'": True,
    "facility > severity": True,
    "facility > severity + 1": False,
    "severity <= '4'": False,
    "severity < 4.5": False,
    "severity in (1, null)": False,
    "app like 's%'": False,
    "severity <=> null": False,
    "severity between 1 and 3": False,
    "length(body) > 4": False,
    "body = 'junk'": False,
    "ts > timestamp'2020-01-01'": False,
    "seq > 3000000000": True,
    "true": False,
    "app = null": False,
    "replayed": False,
}


def test_condition_gives_the_same_in_arrow_as_in_spark(frame: Frames) -> None:
    parsed = ParseFilter(SYSLOG).apply(frame(*LINES, b"<13>1 - - - - - -", b"<14>1 - h x x - - y"))
    table = parsed.rows().cache()
    for text, in_arrow in CONDITIONS.items():
        stage = arrow_text.condition(parsed.schema, text)
        assert (stage is not None) == in_arrow, text
        if stage is not None:
            expected = sorted(row.seq for row in table.where(text).collect())
            kept = parsed.arrow(stage, parsed.schema)
            assert [row["seq"] for row in rows(kept)] == expected, text


def test_choice_of_columns_gives_the_same_in_arrow_as_in_spark(frame: Frames) -> None:
    plain = frame(*LINES)
    for texts, in_arrow in {
        ("seq", "HOST", "body AS line"): True,
        ("*",): True,
        ("seq AS a", "seq AS b"): True,
        ("seq", "upper(host)"): False,
        ("*", "seq"): False,
        ("attrs.source",): False,
        ("count(*)",): False,
        ("explode(sequence(1, 2)) AS seq",): False,
        ("host", "row_number() OVER (ORDER BY ts) AS seq"): False,
        ("host", "seq + 1 AS seq"): False,
    }.items():
        stage = arrow_text.columns(plain.schema, texts)
        assert (stage is not None) == in_arrow, texts
        if stage is not None:
            chosen = SelectFilter(Select(texts)).apply(plain).rows()
            expected = plain.rows().selectExpr(*texts)
            assert chosen.columns == expected.columns
            assert sorted(map(str, chosen.collect())) == sorted(map(str, expected.collect()))


def test_flow_with_constant_comparisons_stays_in_arrow(
    frame: Frames, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = WhereFilter(Where("severity <= 4")).apply(ParseFilter(SYSLOG).apply(frame(*LINES)))
    chosen = SelectFilter(Select(("seq", "app"))).apply(kept)
    chosen.rows().explain()
    plan = capsys.readouterr().out
    assert (plan.count("MapInArrow"), plan.count("Filter")) == (1, 0)
    assert rows(chosen) == [{"seq": 0, "app": "su"}]
