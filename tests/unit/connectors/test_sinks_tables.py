"""Tables of Delta and Iceberg: each batch once by its number, for any committer and any events.

One suite for both formats, on real tables in a directory.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.types import StringType

from flumeng.config import SpecError, check_flow, parse_flow
from flumeng.config.guarantees import promise
from flumeng.connectors.api.dead_letters import RefusedError
from flumeng.connectors.api.sink import Attempt, BatchId, BatchTooWideError, Row, Sink, Written
from flumeng.connectors.files.open_files import OpenFiles
from flumeng.connectors.lakehouse import iceberg_snapshots, tables
from flumeng.connectors.lakehouse.delta import DeltaSink
from flumeng.connectors.lakehouse.group_commit import Addition, GroupCommit
from flumeng.connectors.lakehouse.iceberg import IcebergSink
from flumeng.connectors.lakehouse.options import Catalog, Delta, Iceberg, Snapshots
from flumeng.connectors.lakehouse.table_files import Layout, WriteFiles
from flumeng.connectors.lakehouse.tables import Caller, OvertakenError, TableSink
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.collector import TASK
from tests.testkit.servers.tables import (
    SPARK,
    DeltaDirectory,
    IcebergDirectory,
    Lake,
    elsewhere,
    staged,
)

SERIES = "web.collect.0.abc"


@pytest.fixture(params=[DeltaDirectory, IcebergDirectory], ids=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    found: Lake = request.param(tmp_path)
    return found


def events(*bodies: bytes, day: int = 0, host: str | None = "h1") -> pa.Table:
    ts = [day * 86_400_000_000 + n for n in range(len(bodies))]
    return pa.table(
        {
            "body": pa.array(bodies, pa.binary()),
            "ts": pa.array(ts, pa.timestamp("us", "UTC")),
            "host": pa.array([host] * len(bodies), pa.string()),
            "attrs": pa.array([[("k", "v")]] * len(bodies), pa.map_(pa.string(), pa.string())),
        }
    )


def write(sink: Sink, rows: pa.Table) -> Callable[[BatchId | None], None]:
    """Write without the commit, which is returned as a function."""
    written: Written = sink.written(staged(sink, rows))
    assert written.events == rows.num_rows
    assert written.commit is not None
    return written.commit


def batch(number: int, series: str = SERIES) -> BatchId:
    return BatchId(series, number)


def bodies(lake: Lake) -> list[bytes]:
    return sorted(lake.rows()["body"].to_pylist())


def test_table_is_made_and_a_batch_shows_when_it_is_committed(lake: Lake) -> None:
    commit = write(lake.sink(), events(b"a", b"\xff\0"))
    assert bodies(lake) == []
    commit(batch(1))
    assert lake.rows().sort_by("ts").to_pylist() == events(b"a", b"\xff\0").to_pylist()


@pytest.mark.slow
def test_present_or_lower_batch_number_is_not_committed_again(lake: Lake) -> None:
    sink = lake.sink()
    first = write(sink, events(b"a"))
    first(batch(1))
    first(batch(1))
    write(lake.sink(), events(b"a"))(batch(1))
    write(sink, events(b"b"))(batch(2))
    write(lake.sink(), events(b"a"))(batch(1))
    assert bodies(lake) == [b"a", b"b"]
    assert lake.commits() == 2


def test_series_are_independent_and_a_batch_without_a_number_is_appended(lake: Lake) -> None:
    sink = lake.sink()
    write(sink, events(b"a"))(batch(5))
    write(sink, events(b"b"))(batch(1, "web.collect.1.def"))
    write(sink, events(b"c"))(None)
    write(sink, events(b"c"))(None)
    assert bodies(lake) == [b"a", b"b", b"c", b"c"]


def test_batch_without_events_makes_no_commit(lake: Lake) -> None:
    sink = lake.sink()
    assert sink.written(staged(sink, events())).commit is None
    assert lake.commits() == 0


def test_an_owner_that_wakes_up_late_adds_nothing(lake: Lake) -> None:
    """It has looked, the batch was not there, and it slept while the next owner committed it."""
    slept: list[bool] = []

    def sleep_first(_additions: Sequence[Addition]) -> None:
        if not slept:
            slept.append(True)
            write(elsewhere(lake.sink()), events(b"a"))(batch(1))

    late = TableSink(lake.our_table(before=sleep_first), GroupCommit(), TASK)
    commit = write(late, events(b"a"))
    try:
        commit(batch(1))
    except ConflictError as error:
        assert "another owner" in str(error)
    assert slept
    assert bodies(lake) == [b"a"]
    commit(batch(1))
    assert bodies(lake) == [b"a"]


@pytest.mark.slow
def test_another_writer_between_look_and_commit_costs_a_second_look(lake: Lake) -> None:
    foreign = [events(b"x"), events(b"y"), events(b"z")]

    def another(_additions: Sequence[Addition]) -> None:
        if foreign:
            lake.append(foreign.pop())

    sink = TableSink(lake.our_table(before=another), GroupCommit(), TASK)
    write(sink, events(b"a"))(batch(1))
    assert b"a" in bodies(lake)
    assert len(bodies(lake)) == 4 - len(foreign)


def test_rows_are_in_their_partitions_and_none_is_lost(lake: Lake) -> None:
    sink = lake.sink("day(ts)", "host")
    rows = pa.concat_tables(
        [
            events(b"a", b"b"),
            events(b"c", day=1),
            events(b"d", day=-719_162, host=None),
            events(b"e", day=2_932_896, host='x="/\n\u00fc'),
            events(b"f").set_column(1, "ts", pa.nulls(1, pa.timestamp("us", "UTC"))),
        ]
    )
    found = staged(sink, rows)
    assert len(found) == 5
    written = sink.written(found)
    assert written.commit is not None
    written.commit(batch(1))
    kept = lake.rows().select(rows.schema.names)
    assert kept.sort_by("body").to_pylist() == rows.sort_by("body").to_pylist()


def test_another_engine_reads_the_written_tables(lake: Lake) -> None:
    sink = lake.sink("day(ts)")
    for number in range(3):
        write(sink, events(b"a", b"b", day=number))(batch(number))
    counted = duckdb.from_arrow(lake.rows()).aggregate("count(*), count(distinct ts), min(host)")
    assert counted.fetchall() == [(6, 6, "h1")]


def test_readers_skip_files_by_their_statistics(tmp_path: Path) -> None:
    lake = DeltaDirectory(tmp_path)
    sink = lake.sink()
    for day in range(3):
        write(sink, events(b"a", b"b", day=day))(batch(day))
    table = DeltaTable(lake.place)
    actions = pa.table(table.get_add_actions(flatten=True))
    assert sum(actions["num_records"].to_pylist()) == 6
    assert sorted(moment.day for moment in actions["min.ts"].to_pylist()) == [1, 2, 3]
    since = dt.datetime(1970, 1, 2, tzinfo=dt.UTC)
    rows = table.to_pyarrow_table(filters=[("ts", ">=", since)])
    assert rows.num_rows == 4


def wide() -> pa.Table:
    """A column of each type that `select` can make."""
    return pa.table(
        {
            "i8": pa.array([1, None], pa.int8()),
            "i32": pa.array([2**31 - 1, None], pa.int32()),
            "i64": pa.array([2**63 - 1, None], pa.int64()),
            "f32": pa.array([1.5, float("nan")], pa.float32()),
            "f64": pa.array([float("-inf"), None], pa.float64()),
            "dec": pa.array([Decimal("12345678.90"), None], pa.decimal128(10, 2)),
            "flag": pa.array([True, None]),
            "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
            "ntz": pa.array([dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None]),
            "list": pa.array([["a", None], None], pa.list_(pa.string())),
            "struct": pa.array([{"x": 1, "y": [1]}, None]),
            "map": pa.array([[("k", [1])], None], pa.map_(pa.string(), pa.list_(pa.int32()))),
            "text": pa.array(["quotes \" ' \\ \0 \x1b \u2028", None]),
        }
    )


def test_columns_of_every_type_are_read_back(lake: Lake) -> None:
    rows = wide()
    write(lake.sink(), rows)(batch(1))
    found = lake.rows().select(rows.schema.names)
    assert str(found.to_pylist()) == str(rows.to_pylist())  # not a number equals nothing


def test_times_beyond_the_calendar_are_kept_by_delta_and_refused_by_iceberg(lake: Lake) -> None:
    rows = pa.table({"far": pa.array([2**62, None], pa.timestamp("us", "UTC"))})
    commit = write(lake.sink(), rows)
    if isinstance(lake, DeltaDirectory):
        commit(batch(1))
        assert lake.rows()["far"].cast(pa.int64()).to_pylist() == [2**62, None]
        return
    with pytest.raises(UserError, match="the years 1 to 9999"):
        commit(batch(1))


def test_new_columns_are_added_and_missing_ones_are_null(lake: Lake) -> None:
    sink = lake.sink()
    write(sink, events(b"a"))(batch(1))
    more = events(b"b").append_column("status", pa.array([200], pa.int32()))
    write(sink, more)(batch(2))
    write(sink, events(b"c"))(batch(3))
    found = {row["body"]: row["status"] for row in lake.rows().to_pylist()}
    assert found == {b"a": None, b"b": 200, b"c": None}


def test_a_fixed_table_gets_no_columns(lake: Lake) -> None:
    write(lake.sink(), events(b"a"))(batch(1))
    more = events(b"b").append_column("status", pa.array([200]))
    with pytest.raises(UserError, match="no column status"):
        write(lake.sink(schema="fixed"), more)
    write(lake.sink(schema="fixed"), events(b"b"))(batch(2))


def test_narrower_numbers_are_written_as_the_tables(lake: Lake) -> None:
    def number(value: int, kind: pa.DataType) -> pa.Table:
        return events(b"a").append_column("status", pa.array([value], kind))

    sink = lake.sink()
    write(sink, number(2**40, pa.int64()))(batch(1))
    write(sink, number(7, pa.int32()))(batch(2))
    assert sorted(lake.rows()["status"].to_pylist()) == [7, 2**40]


def test_wider_numbers_widen_an_iceberg_table_and_not_a_delta_table(lake: Lake) -> None:
    def number(value: int, kind: pa.DataType) -> pa.Table:
        return events(b"a").append_column("status", pa.array([value], kind))

    sink = lake.sink()
    write(sink, number(7, pa.int32()))(batch(1))
    if isinstance(lake, DeltaDirectory):
        with pytest.raises(UserError, match=r"column status is int64, wider than int32"):
            write(sink, number(2**40, pa.int64()))
        return
    write(sink, number(2**40, pa.int64()))(batch(2))
    assert sorted(lake.rows()["status"].to_pylist()) == [7, 2**40]


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (pa.array(["x"]), "column ts is string, and timestamp"),
        (pa.array([1.5]), "column ts is double"),
    ],
)
def test_a_type_that_does_not_fit_is_named(lake: Lake, column: pa.Array, match: str) -> None:
    write(lake.sink(), events(b"a"))(batch(1))
    with pytest.raises(UserError, match=match):
        write(lake.sink(), events(b"b").set_column(1, "ts", column))


@pytest.mark.parametrize("kind", [pa.null(), pa.duration("us"), pa.list_(pa.null())])
def test_type_that_no_table_has_is_named(lake: Lake, kind: pa.DataType) -> None:
    rows = pa.table({"odd": pa.nulls(1, kind)})
    with pytest.raises(UserError, match="the column odd is"):
        write(lake.sink(), rows)
    write(lake.sink(), events(b"a"))(batch(1))
    with pytest.raises(UserError, match="the column odd is"):
        write(lake.sink(), events(b"a").append_column("odd", rows["odd"]))


def test_names_that_differ_by_case_are_refused(lake: Lake) -> None:
    with pytest.raises(UserError, match="host and HOST"):
        write(lake.sink(), events(b"a").append_column("HOST", pa.array(["x"])))
    write(lake.sink(), events(b"a"))(batch(1))
    with pytest.raises(UserError, match="Body is called body"):
        write(lake.sink(), events(b"a").rename_columns(["Body", "ts", "host", "attrs"]))


@pytest.mark.parametrize(
    ("by", "match"), [("nope", "no column nope"), ("attrs", "attrs is map"), ("body", "body is")]
)
def test_invalid_partitioning_is_reported(lake: Lake, by: str, match: str) -> None:
    with pytest.raises(UserError, match=match):
        write(lake.sink(by), events(b"a"))


def test_existing_table_keeps_its_partitions(lake: Lake) -> None:
    write(lake.sink("host"), events(b"a"))(batch(1))
    (row,) = staged(lake.sink("day(ts)"), events(b"a"))
    assert str(row["path"]).startswith("host=h1/")


def test_events_with_an_unnameable_partition_are_refused(lake: Lake) -> None:
    with pytest.raises(RefusedError, match="partition_by column has more than 1024 bytes"):
        write(lake.sink("host"), events(b"a", host="x" * 1025))
    write(lake.sink("host"), events(b"a", host="x" * 1024))(batch(1))
    assert lake.rows()["host"].to_pylist() == ["x" * 1024]


def test_table_that_changes_meanwhile_gets_the_batch_written_again(lake: Lake) -> None:
    sink = lake.sink()
    write(sink, events(b"a"))(batch(1))
    late = write(sink, events(b"b").append_column("n", pa.array([1], pa.int32())))
    lake.drop("n")
    with pytest.raises(UnavailableError, match="changed while"):
        late(batch(2))
    write(sink, events(b"b").append_column("n", pa.array([1], pa.int32())))(batch(2))
    assert bodies(lake) == [b"a", b"b"]


def test_unreachable_table_fails_the_batch_and_not_the_task(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/nowhere/catalog.db"
    options = Iceberg(Catalog("sql", uri, warehouse=str(tmp_path)), "web.events")
    with pytest.raises(UnavailableError, match="unable to open"):
        staged(IcebergSink(options, TASK), events(b"a"))


def test_table_with_an_unsupported_requirement_is_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "delta")
    DeltaTable.create(place, events().schema).alter.add_constraint({"known": "host != 'x'"})
    with pytest.raises(UserError, match=r"constraints\.known"):
        staged(DeltaSink(Delta(place), TASK), events(b"a"))


@pytest.mark.parametrize("feature", ["clustering", "domainMetadata", "rowTracking", "unheardOf"])
def test_delta_feature_unknown_to_the_library_is_refused_without_orphans(
    tmp_path: Path, feature: str
) -> None:
    lake = DeltaDirectory(tmp_path)
    lake.sink().stage(LazyBatch(SPARK, 1, None, (), events(b"x").schema), Attempt())
    log = Path(lake.place, "_delta_log", "00000000000000000000.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            features = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
            line["protocol"] = features
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=f"a Delta table with the feature {feature}"):
        staged(lake.sink(), events(b"a"))
    assert list(Path(lake.place).rglob("*.parquet")) == []


def written_by(write: WriteFiles, rows: pa.Table) -> list[Row]:
    def refuse(_events: pa.RecordBatch, reasons: Sequence[str]) -> None:
        raise AssertionError(reasons)

    return [row for out in write(iter(rows.to_batches()), refuse) for row in out.to_pylist()]


def test_least_recently_used_partition_files_are_closed_first(lake: Lake) -> None:
    rows = pa.concat_tables([events(b"x", host=host) for host in "abacaba"])
    layout = lake.our_table("host").prepare(rows.schema)
    found = written_by(WriteFiles(layout, 1, partial(OpenFiles, most_open=2)), rows)
    assert sorted((str(row["path"])[5], row["events"]) for row in found) == [
        ("a", 4), ("b", 1), ("b", 1), ("c", 1),
    ]  # fmt: skip


def test_too_fine_partitioning_makes_the_batch_smaller(tmp_path: Path) -> None:
    """And does not write a file for each value before that is reported."""
    lake = DeltaDirectory(tmp_path)
    rows = pa.concat_tables([events(b"x", host=f"h{n}") for n in range(200)]).combine_chunks()
    write = WriteFiles(
        lake.our_table("host").prepare(rows.schema), open_files=partial(OpenFiles, most_files=10)
    )
    with pytest.raises(BatchTooWideError, match="too fine"):
        lake.sink("host").written(written_by(write, rows))
    assert len(list(tmp_path.rglob("*.parquet"))) == 11


class Hanging:
    """A table whose calls return when ``answer`` is set; ``calls``: how many have begun."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.calls = 0

    def prepare(self, events: pa.Schema) -> Layout:
        return Layout("/nowhere", events, (), tuple(events.names))

    def add(self, additions: Sequence[Addition]) -> Sequence[Addition]:
        self.calls += 1
        return [] if self.answer.wait(60) else additions


def test_hanging_call_is_not_waited_for_and_forgotten_in_the_end(tmp_path: Path) -> None:
    table: Any = Hanging()
    call = Caller(answer_seconds=0.05)
    sink = TableSink(table, GroupCommit(), TASK, call)
    commit = sink.written(staged(DeltaDirectory(tmp_path).sink(), events(b"a"))).commit
    assert commit
    with pytest.raises(UnavailableError, match="did not respond"):
        commit(batch(1))
    with pytest.raises(UnavailableError, match="has not responded for"):
        commit(batch(1))
    assert table.calls == 1
    table.answer.set()
    call.answer_seconds, call.forget_seconds = 20.0, 0.0
    commit(batch(1))
    assert table.calls == 2


class Overtaken(Hanging):
    def add(self, additions: Sequence[Addition]) -> Sequence[Addition]:
        del additions
        self.calls += 1
        raise OvertakenError("somebody was first")


def test_commit_that_is_always_overtaken_is_given_up(tmp_path: Path) -> None:
    table: Any = Overtaken()
    sink = TableSink(table, GroupCommit(), TASK, Caller(pause_seconds=0.0))
    commit = sink.written(staged(DeltaDirectory(tmp_path).sink(), events(b"a"))).commit
    assert commit
    with pytest.raises(UnavailableError, match=r"first, 12 times: somebody was first"):
        commit(batch(1))
    assert table.calls == tables.COMMITS


def flow(*sinks: str, filters: str = "[]") -> str:
    source = "syslog: {listen: '127.0.0.1:0'}"
    text = f"{{flow: web, sources: [{source}], filters: {filters}, delivery: exactly-once"
    return f"{text}, sinks: [{', '.join(sinks)}]}}"


SQLITE = "catalog: {type: sql, uri: 'sqlite:////lake/c.db', warehouse: /lake}, table: web.events"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("delta: {path: 's3a://lake/web'}", "delta: {path: 's3://lake/web/'}"),
        (f"iceberg: {{{SQLITE}}}", f"iceberg: {{{SQLITE}, schema: fixed}}"),
    ],
)
def test_two_sinks_of_a_flow_cannot_share_a_table(one: str, other: str) -> None:
    """The second would find its batch's number there, and add nothing."""
    with pytest.raises(SpecError, match="already"):
        parse_flow(flow(one, other))


def test_table_on_a_local_disk_is_reported_as_one_of_each_host() -> None:
    for sink in ("delta: {path: /lake}", f"iceberg: {{{SQLITE}}}"):
        assert "on the disk of each host" in " ".join(promise(parse_flow(flow(sink))))
    for sink in ("delta: {path: /lake, shared: true}", "delta: {path: 's3://b/lake'}"):
        assert "on the disk" not in " ".join(promise(parse_flow(flow(sink))))


def test_partitioning_by_a_missing_column_is_reported() -> None:
    for sink in ("delta: {path: /lake", f"iceberg: {{{SQLITE}"):
        check_flow(flow(f"{sink}, partition_by: ['day(ts)', host]}}"))
        with pytest.raises(SpecError, match="no column ts"):
            check_flow(flow(f"{sink}, partition_by: ['day(ts)']}}", filters="[select: [body]]"))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("delta: {path: '/lake/%Y'}", "without patterns"),
        ("delta: {path: /lake, partition_by: ['week(ts)']}", "like day"),
        ("delta: {path: /lake, partition_by: ['hour(ts)']}", "the day of one"),
        ("delta: {path: /lake, credentials: {session_token: '${secret:a}'}}", "without a host"),
        (f"iceberg: {{{SQLITE}, partition_by: ['bucket(ts)']}}", "like day"),
        ("iceberg: {catalog: {type: sql, uri: 'sqlite:////c.db'}, table: web.events}",
         "needs a warehouse"),
        ("iceberg: {catalog: {type: rest, uri: 'sqlite:////c.db'}, table: web.events}",
         "a rest catalog"),
        ("iceberg: {catalog: {type: sql, uri: 'postgresql://u:p@h/c', warehouse: /l}, table: a.b}",
         "no password"),
        ("iceberg: {catalog: {type: rest, uri: 'https://c'}, table: events}", "and a name"),
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_problems_of_the_file(options: str, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        parse_flow(flow(options))


def test_columns_keep_their_values_when_another_engine_renames_or_deletes_them(
    tmp_path: Path,
) -> None:
    """Files have field ids, also of inner fields, and no mapping by names is made."""
    lake = IcebergDirectory(tmp_path)
    write(lake.sink(), events(b"a", host="old"))(batch(1))
    (task,) = lake.table().scan().plan_files()
    footer = pq.read_schema(task.file.file_path.removeprefix("file://"))
    ids = {field.name: (field.metadata or {}).get(b"PARQUET:field_id") for field in footer}
    assert ids == {"body": b"1", "ts": b"2", "host": b"3", "attrs": b"4"}
    assert footer.field("attrs").type.key_field.metadata[b"PARQUET:field_id"] == b"5"
    with lake.table().update_schema() as update:
        update.rename_column("host", "hostname")
        update.rename_column("attrs", "labels")
    write(lake.sink(), events(b"b", host="new"))(batch(2))
    rows = {row["body"]: row for row in lake.rows().to_pylist()}
    assert (rows[b"a"]["hostname"], rows[b"a"]["host"]) == ("old", None)
    assert (rows[b"b"]["hostname"], rows[b"b"]["host"]) == (None, "new")
    assert (rows[b"a"]["labels"], rows[b"a"]["attrs"]) == ([("k", "v")], None)
    lake.drop("host")
    write(lake.sink(), events(b"c", host="again"))(batch(3))
    assert {row["body"]: row["host"] for row in lake.rows().to_pylist()} == {
        b"a": None,
        b"b": None,
        b"c": "again",
    }
    assert lake.table().metadata.name_mapping() is None


def test_column_that_files_without_ids_have_is_not_added_again(tmp_path: Path) -> None:
    lake = IcebergDirectory(tmp_path)
    lake.sink().stage(LazyBatch(SPARK, 1, None, (), events(b"x").schema), Attempt())
    file = tmp_path / "old.parquet"
    pq.write_table(events(b"a", host="old"), file)
    lake.table().add_files([str(file)])
    with lake.table().update_schema() as update:
        update.rename_column("host", "hostname")
    with pytest.raises(UserError, match="the column host was renamed or deleted by another writer"):
        staged(lake.sink(), events(b"b", host="new"))
    assert lake.rows()["hostname"].to_pylist() == ["old"]


def test_recreated_table_with_other_ids_gets_the_batch_written_again(tmp_path: Path) -> None:
    lake = IcebergDirectory(tmp_path)
    sink = lake.sink()
    commit = write(sink, events(b"a"))
    lake.drop("host")
    with lake.table().update_schema() as update:
        update.add_column("host", StringType())
    with pytest.raises(UnavailableError, match="the table changed"):
        commit(batch(1))
    write(sink, events(b"a"))(batch(1))
    assert lake.rows()["host"].to_pylist() == ["h1"]


def expiring(lake: IcebergDirectory, **keep: Any) -> Sink:
    return IcebergSink(Iceberg(lake.catalog, "web.events", snapshots=Snapshots(**keep)), TASK)


def metadata_files(lake: IcebergDirectory) -> set[str]:
    place = lake.table().location().removeprefix("file://")
    return {str(path) for path in Path(place, "metadata").glob("*.avro")}


@pytest.mark.slow
def test_old_snapshots_expire_and_no_row_or_number_is_lost(tmp_path: Path) -> None:
    """Metadata files that only they had are gone too."""
    lake = IcebergDirectory(tmp_path)
    sink = expiring(lake, seconds=0, least=3)
    for number in range(60):
        write(sink, events(b"%02d" % number))(batch(number))
    table = lake.table()
    assert 3 <= len(table.snapshots()) < 3 + iceberg_snapshots.AT_ONCE
    assert bodies(lake) == [b"%02d" % number for number in range(60)]
    write(expiring(lake, seconds=0, least=3), events(b"59"))(batch(59))
    assert len(bodies(lake)) == 60, "the last number is remembered"
    needed = {one.manifest_list for one in table.snapshots()}
    for one in table.snapshots():
        needed |= {manifest.manifest_path for manifest in one.manifests(table.io)}
    unneeded = metadata_files(lake) - {path.removeprefix("file://") for path in needed}
    assert len(unneeded) <= 1, "the library leaves one manifest each time that it merges"
    assert len(table.current_snapshot().manifests(table.io)) <= 50


@pytest.mark.long
def test_snapshots_of_other_writers_stay_with_their_files(tmp_path: Path) -> None:
    """Also old ones that the table had before flumeng wrote to it, and those in between."""
    lake = IcebergDirectory(tmp_path)
    write(expiring(lake, expire=False), events(b"first"))(batch(0))
    for _ in range(15):
        lake.append(lake.rows().slice(0, 1))
    foreign = [one.snapshot_id for one in lake.table().snapshots()][1:]
    for number in range(1, 60):
        write(expiring(lake, seconds=0, least=1), events(b"%02d" % number))(batch(number))
        if number == 30:
            lake.append(lake.rows().slice(0, 1))
            foreign.append(lake.table().current_snapshot().snapshot_id)
    table = lake.table()
    left = {one.snapshot_id for one in table.snapshots()}
    assert left >= set(foreign)
    assert len(left) <= len(foreign) + 1 + iceberg_snapshots.AT_ONCE
    counts = [table.scan(snapshot_id=one).to_arrow().num_rows for one in foreign]
    assert counts == [*range(2, 17), 47], "each can still be read"


@pytest.mark.long
@pytest.mark.parametrize(
    ("properties", "keep", "kept"),
    [
        ({}, {}, 30),
        ({"history.expire.max-snapshot-age-ms": "0"}, {}, 20),
        ({"history.expire.min-snapshots-to-keep": "5"}, {"seconds": 0}, 5),
        (
            {
                "history.expire.max-snapshot-age-ms": "0",
                "history.expire.min-snapshots-to-keep": "2",
            },
            {},
            2,
        ),
        ({"history.expire.max-snapshot-age-ms": "432000000"}, {}, 30),
        ({"history.expire.max-snapshot-age-ms": "0"}, {"seconds": 3600}, 30),
        ({"history.expire.min-snapshots-to-keep": "many"}, {"seconds": 0}, 20),
    ],
)
def test_flow_overrides_the_snapshot_retention_of_the_table(
    tmp_path: Path, properties: dict[str, str], keep: dict[str, Any], kept: int
) -> None:
    lake = IcebergDirectory(tmp_path)
    write(expiring(lake), events(b"00"))(batch(0))
    with lake.table().transaction() as transaction:
        transaction.set_properties(properties)
    for number in range(1, 30):
        write(expiring(lake, **keep), events(b"%02d" % number))(batch(number))
    found = len(lake.table().snapshots())
    assert kept <= found < kept + iceberg_snapshots.AT_ONCE


@pytest.mark.slow
def test_young_snapshots_and_those_before_a_rewrite_are_kept(tmp_path: Path) -> None:
    lake = IcebergDirectory(tmp_path)
    for number in range(15):
        write(expiring(lake), events(b"%02d" % number))(batch(number))
    assert len(lake.table().snapshots()) == 15, "they are young"
    lake.table().overwrite(lake.rows().slice(0, 1))
    rewritten = len(lake.table().snapshots())
    before = {one.snapshot_id for one in lake.table().snapshots()}
    sink = expiring(lake, seconds=0, least=1)
    for number in range(15, 30):
        write(sink, events(b"%02d" % number))(batch(number))
    left = {one.snapshot_id for one in lake.table().snapshots()}
    assert len(before & left) >= 15, "their files are for the engine that replaced them"
    assert len(left) < rewritten + 15
    off = expiring(lake, expire=False, seconds=0, least=1)
    for number in range(30, 45):
        write(off, events(b"%02d" % number))(batch(number))
    assert len(lake.table().snapshots()) == len(left) + 15
