"""Looking things up in a table, and how a table is kept fresh."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config.tables import MOST_ROWS, SILENT_SECONDS, Jdbc, LookupTable
from flumeng.filters import table_reader
from flumeng.filters.lookup import Directory, LookupStage
from flumeng.filters.refreshed_table import RefreshedTable, require_unique
from flumeng.platform.errors import UnavailableError, UserError
from tests.testkit.logs import tracebacks
from tests.testkit.waiting import wait_for

APPS = pa.schema([pa.field("app", pa.string()), pa.field("team", pa.string())])
NO_SPARK: Any = None


def looked_up(
    events: dict[str, Sequence[Any]], table: pa.Table, on: tuple[str, ...], how: str = "left"
) -> list[dict[str, Any]]:
    """The events in small batches, with the columns that the stage adds."""
    batches = pa.table(events).to_batches(max_chunksize=3)
    added = [field for field in table.schema if field.name not in on]
    schema = pa.schema([*batches[0].schema, *added])
    stage = LookupStage(Directory(on, table), how, schema)
    found = list(stage(iter(batches)))
    assert all(batch.schema == schema for batch in found)
    return [row for batch in found for row in batch.to_pylist()]


def test_an_event_gets_the_columns_of_its_row_or_nulls_or_is_dropped() -> None:
    table = pa.table({"app": ["web", None, "db"], "team": ["red", "none", "blue"]})
    events: dict[str, Sequence[Any]] = {
        "app": ["db", "x", "web", None, "db"],
        "seq": [0, 1, 2, 3, 4],
    }
    found = looked_up(events, table, ("app",))
    assert [row["team"] for row in found] == ["blue", None, "red", None, "blue"]
    found = looked_up(events, table, ("app",), "inner")
    assert [(row["seq"], row["team"]) for row in found] == [(0, "blue"), (2, "red"), (4, "blue")]
    assert looked_up({"app": ["x"] * 4}, table, ("app",), "inner") == []


def test_lookup_keys_of_other_widths_and_empty_tables_match_as_in_sql() -> None:
    table = pa.table({"code": pa.array([200, 500], pa.int64()), "ok": [True, False]})
    events = {"code": pa.array([500, 404, 200], pa.int32())}
    assert [row["ok"] for row in looked_up(events, table, ("code",))] == [False, None, True]
    assert [row["ok"] for row in looked_up(events, table.slice(0, 0), ("code",))] == [None] * 3


def test_no_two_keys_of_several_columns_are_taken_for_each_other() -> None:
    grid = [(first, second) for first in range(4) for second in "abcde"]
    table = pa.table(
        {
            "a": [first for first, _ in grid],
            "b": [second for _, second in grid],
            "row": list(range(len(grid))),
        }
    ).take(list(range(0, len(grid), 2)))
    events: dict[str, Sequence[Any]] = {"a": [a for a, _ in grid], "b": [b for _, b in grid]}
    found = [row["row"] for row in looked_up(events, table, ("a", "b"))]
    assert found == [None if row % 2 else row for row in range(len(grid))]


def test_keys_of_many_columns_with_many_values_are_not_taken_for_each_other() -> None:
    """The product of the numbers of values is over 2**64."""
    names = ("a", "b", "c", "d", "e")
    numbers = pa.array(range(65_536))
    first = pc.bit_wise_and(numbers, 1)
    others = dict.fromkeys(names[1:], numbers)
    table = pa.table({"a": first, **others, "row": numbers})
    events: dict[str, Sequence[Any]] = {name: [0, 0, 65_535, 65_535] for name in names}
    events["a"] = [0, 1, 1, 0]
    assert [row["row"] for row in looked_up(events, table, names)] == [0, None, 65_535, None]


KEYS = st.one_of(st.none(), st.integers(0, 4))


@given(
    rows=st.lists(st.tuples(KEYS, st.one_of(st.none(), st.sampled_from("ab")), KEYS), max_size=12),
    events=st.lists(
        st.tuples(KEYS, st.one_of(st.none(), st.sampled_from("abc")), KEYS), min_size=1, max_size=9
    ),
)
def test_several_keys_match_as_in_a_join_of_sql(rows: list[Any], events: list[Any]) -> None:
    """As a join in SQL has it: a null is equal to nothing."""
    unique = {row: number for number, row in enumerate(rows)}
    table = pa.table(
        {
            "a": pa.array([row[0] for row in unique], pa.int32()),
            "b": pa.array([row[1] for row in unique], pa.string()),
            "c": pa.array([row[2] for row in unique], pa.int64()),
            "number": pa.array(list(unique.values()), pa.int64()),
        }
    )
    require_unique(table, ("a", "b", "c"))
    columns: Any = {
        "a": pa.array([event[0] for event in events], pa.int64()),
        "b": pa.array([event[1] for event in events], pa.string()),
        "c": pa.array([event[2] for event in events], pa.int16()),
    }
    wanted = [None if None in event else unique.get(event) for event in events]
    assert [row["number"] for row in looked_up(columns, table, ("a", "b", "c"))] == wanted


def test_a_table_with_several_rows_for_a_key_is_refused() -> None:
    table = pa.table({"app": ["web", None, None, "web"], "team": ["a", "b", "c", "d"]})
    with pytest.raises(
        UserError, match="the table has 2 rows with app 'web', but the keys must be unique"
    ):
        require_unique(table, ("app",))
    require_unique(table, ("app", "team"))


@pytest.mark.parametrize("form", ["csv", "parquet", "directory", "delta"])
def test_a_table_is_read_from_files_of_each_kind(tmp_path: Path, form: str) -> None:
    times = [datetime(2026, 3, 1, 12, tzinfo=UTC), None]
    table = pa.table({"more": [1, 2], "app": ["web", "db"], "since": times, "id": [7, None]})
    path = str(tmp_path / "table")
    if form == "csv":
        Path(path).write_text("more,app,since,id\n1,web,2026-03-01 12:00:00Z,7\n2,db,,\n")
    elif form == "parquet":
        pq.write_table(table, path)
    elif form == "directory":
        Path(path).mkdir()
        pq.write_table(table.slice(0, 1), f"{path}/a.parquet")
        pq.write_table(table.slice(1), f"{path}/b.parquet")
    else:
        deltalake.write_deltalake(path, table)
    kind = {"directory": "parquet"}.get(form, form)
    given: Any = {kind: path}
    options = LookupTable(schema="", **given)
    schema = pa.schema(
        [
            pa.field("id", pa.int32()),
            pa.field("app", pa.string()),
            pa.field("since", pa.timestamp("us", "UTC")),
        ]
    )
    found = table_reader.read(options, schema, NO_SPARK)
    assert found.schema == schema
    assert found.to_pylist() == [
        {"id": 7, "app": "web", "since": times[0]},
        {"id": None, "app": "db", "since": None},
    ]
    wrong = pa.schema([pa.field("apps", pa.string())])
    with pytest.raises(UserError, match="apps"):
        table_reader.read(options, wrong, NO_SPARK)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (None, UnavailableError, "the file does not exist"),
        ("", UserError, "Empty CSV file"),
        ("app,team\nweb,red,x\n", UserError, "Expected 2 columns, got 3"),
        ("app\nweb\n", UserError, "team"),
        (b"app,team\nweb,\xff\n", UserError, "UTF8"),
        pytest.param(b"\0" * 100, UserError, "column", id="zeros"),
    ],
)
def test_error_of_a_table_file_is_reported(
    tmp_path: Path, text: str | bytes | None, error: type[Exception], said: str
) -> None:
    path = tmp_path / "apps.csv"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(error, match=said):
        table_reader.read(LookupTable(schema="", csv=str(path)), APPS, NO_SPARK)


@pytest.mark.slow
def test_a_table_that_is_too_large_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.nulls(MOST_ROWS + 1, pa.int64())}), tmp_path / "many")
    long = pa.array(["x" * 1_000_000]).take(pa.array([0] * 70))
    pq.write_table(pa.table({"id": long}), tmp_path / "long")
    for name, kind in (("many", pa.int64()), ("long", pa.string())):
        options = LookupTable(schema="", parquet=str(tmp_path / name))
        with pytest.raises(UserError, match="limit of a lookup table, 1,000,000 rows and 64 MiB"):
            table_reader.read(options, pa.schema([pa.field("id", kind)]), NO_SPARK)


def test_only_a_bounded_part_of_a_too_large_table_leaves_the_executor() -> None:
    long = pa.record_batch({"id": pa.array(["x" * 10_000_000])})
    many = pa.record_batch({"id": pa.nulls(300_000)})
    for batch, wanted in ((long, 7), (many, 4)):
        rest = iter([batch] * 100)
        assert len(list(table_reader.until_too_many(rest))) == wanted
        assert len(list(rest)) == 100 - wanted, "nothing more is read"
    assert len(list(table_reader.until_too_many([long] * 6))) == 6


class Source:
    """The source of a table; ``answer`` may be an error, or an event to wait for."""

    def __init__(self, seconds: float = 100.0, stale: float = 1000.0, **limits: float) -> None:
        self.now = 0.0
        self.reads = 0
        self.answer: str | Exception | threading.Event = "first"
        options = LookupTable(
            schema="", csv="/apps.csv", refresh_seconds=seconds, stale_seconds=stale
        )
        self.table = RefreshedTable(options, APPS, self.read, lambda: self.now, **limits)

    def read(self) -> pa.Table:
        self.reads += 1
        answer = self.answer
        if isinstance(answer, threading.Event):
            answer.wait()
        if isinstance(answer, Exception):
            raise answer
        return pa.table({"app": ["web"], "team": [str(answer)]})

    @property
    def team(self) -> str | None:
        version = self.table.version
        return None if version is None else str(version.table["team"][0])

    def at(self, seconds: float) -> str | None:
        self.now = seconds
        self.table.refresh()
        return self.team


def test_a_table_is_read_again_by_age() -> None:
    source = Source()
    assert source.team is None
    assert source.at(0) == "first"
    source.answer = "second"
    assert source.at(99) == "first"
    assert source.at(100) == "second"
    assert source.at(150) == "second"
    assert source.reads == 2
    assert source.table.trouble == ""
    before = source.table.version
    assert source.at(200) == "second"
    assert source.reads == 3
    assert source.table.version is before, "what has not changed is not handed to Spark again"


@pytest.mark.parametrize("error", [UnavailableError("it is not there"), UserError("2 rows")])
def test_a_table_that_cannot_be_read_again_is_used_until_it_is_stale(error: Exception) -> None:
    source = Source()
    source.at(0)
    source.answer = error
    assert source.at(100) == "first"
    assert "/apps.csv, still using the old version" in source.table.trouble
    assert source.at(104) == "first"
    assert source.reads == 2, "not with every batch"
    assert source.at(999) == "first"
    with pytest.raises(type(error), match=f"the lookup table /apps.csv: {error}"):
        source.at(1001)
    source.answer = "second"
    assert source.at(1010) == "second"
    assert source.table.trouble == ""


def test_unexpected_error_of_a_read_is_logged_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    source = Source()
    source.at(0)
    source.answer = KeyError("app")
    for seconds in (100, 110, 120):
        assert source.at(seconds) == "first"
    assert source.reads == 4
    assert tracebacks(caplog) == 1
    source.answer = "second"
    assert source.at(130) == "second"
    assert caplog.messages[-1].endswith(" can be read again")


def test_a_table_that_was_never_there_holds_up_the_batch() -> None:
    source = Source()
    source.answer = UnavailableError("it is not there")
    for seconds in (0, 1, 20):
        with pytest.raises(UnavailableError, match="it is not there"):
            source.at(seconds)
    assert source.reads == 2
    source.answer = "there"
    assert source.at(40) == "there"


def test_a_read_that_hangs_holds_up_one_batch_for_a_moment() -> None:
    source = Source(moment_seconds=0.05, first_seconds=0.1)
    source.at(0)
    source.answer = hang = threading.Event()
    for seconds in (100, 101, 219):
        assert source.at(seconds) == "first"
    assert source.reads == 2
    with pytest.raises(UnavailableError, match="was not read within"):
        source.at(1001)
    hang.set()
    wait_for(lambda: source.table._reading is None)
    assert source.at(1002) != "first"


def test_a_read_that_hangs_is_given_up_and_does_not_come_back() -> None:
    source = Source(moment_seconds=5.0, first_seconds=0.05)
    source.answer = hang = threading.Event()
    for seconds in (0, 119):
        with pytest.raises(UnavailableError, match="was not read within"):
            source.at(seconds)
    assert source.reads == 1
    source.table.first_seconds = 30.0
    source.answer = "second"
    assert source.at(120) == "second"
    hang.set()
    wait_for(lambda: source.table._reads == 0)
    assert source.team == "second"


def test_number_of_hanging_reads_is_bounded() -> None:
    source = Source(first_seconds=0.01)
    source.answer = hang = threading.Event()
    for number in range(10):
        with pytest.raises(UnavailableError, match="was not read within"):
            source.at(number * 120)
    assert source.reads == 4
    hang.set()
    wait_for(lambda: source.table._reads == 0)
    source.answer, source.table.first_seconds = "there", 10.0
    assert source.at(2000) == "there"


def test_silent_database_is_given_up_unless_configured_otherwise() -> None:
    url = "jdbc:postgresql://db/shop"
    assert Jdbc(url, "apps").properties_within(SILENT_SECONDS) == {"socketTimeout": "90"}
    mysql = {"socketTimeout": "90000", "useCursorFetch": "true"}
    assert Jdbc("jdbc:mysql://db/shop", "apps").properties_within(SILENT_SECONDS) == mysql
    given = {"socketTimeout": "7", "sslmode": "require"}
    assert Jdbc(url, "apps", properties=given).properties_within(SILENT_SECONDS) == given


def test_jdbc_url_gives_the_place_for_the_policy_and_the_spark_driver() -> None:
    url = "jdbc:sqlserver://db.example:1433;databaseName=shop"
    assert Jdbc(url, "apps").address == "sqlserver://db.example:1433/shop"
    assert Jdbc(url, "apps").driver == "com.microsoft.sqlserver.jdbc.SQLServerDriver"
    assert Jdbc("jdbc:postgresql://db/shop", "apps").driver == "org.postgresql.Driver"


@pytest.mark.parametrize(
    ("url", "table", "places"),
    [
        ("mysql://db/shop", "apps", ["mysql://db/shop"]),
        ("mysql://db/shop", "shop.apps", ["mysql://db/shop"]),
        ("mysql://db:3306/shop", "hr.salaries", ["mysql://db:3306/shop", "mysql://db:3306/hr"]),
        ("mariadb://db", "hr.salaries", ["mariadb://db", "mariadb://db/hr"]),
        ("postgresql://db/shop", "hr.salaries", ["postgresql://db/shop"]),
        ("postgresql://db/shop", "hr.a.b", ["postgresql://db/shop", "postgresql://db/hr"]),
        ("sqlserver://db;databaseName=shop", "dbo.apps", ["sqlserver://db/shop"]),
        (
            "sqlserver://db;databaseName=shop",
            "hr.dbo.salaries",
            ["sqlserver://db/shop", "sqlserver://db/hr"],
        ),
    ],
)
def test_policy_lists_every_database_that_a_table_query_reads(
    url: str, table: str, places: list[str]
) -> None:
    options = LookupTable(schema="a INT", jdbc=Jdbc(f"jdbc:{url}", table))
    assert list(options.needs()) == [("input", place) for place in places]
