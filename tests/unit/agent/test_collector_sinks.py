"""Files of each format byte for byte, lakes of every kind, and a console that is safe."""

from __future__ import annotations

import gzip
import random
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from flumeng.agent.collector.commit import Commits
from flumeng.agent.collector.ranges import BatchSize
from flumeng.connectors.api.sink import Attempt, BatchTooWideError
from flumeng.connectors.console.sink import LINE_CHARACTERS, LINES_PER_BATCH, render, show
from flumeng.connectors.files.open_files import OpenFiles
from flumeng.connectors.files.options import Files, Roll
from flumeng.connectors.files.sink import FilesSink, StageFiles
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.platform import file_store, remote_store
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.options.locations import Credentials, place_of
from tests.testkit.collector import TASK
from tests.testkit.store import FakeStore
from zkschema import codec, paths
from zkschema.records import Commit

Compression = Literal["zstd", "snappy", "gzip", "none"]
HOUR = 3_600_000_000
TEN_FILES = partial(OpenFiles, most_files=10)


def trial() -> LazyBatch:
    spark: Any = None
    return LazyBatch(spark, 1, None, (), EVENT_SCHEMA)


def batch(*bodies: bytes | None, hours: list[int] | None = None) -> pa.RecordBatch:
    hours = hours or [0] * len(bodies)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(bodies, pa.binary()),
            pa.array([hour * HOUR for hour in hours], pa.timestamp("us", "UTC")),
            pa.array([[("k", "v")]] * len(bodies), pa.map_(pa.string(), pa.string())),
        ],
        ["body", "ts", "attrs"],
    )


def stage(
    tmp_path: Path, options: Files, *batches: pa.RecordBatch, **limits: Any
) -> list[dict[str, object]]:
    staging = tmp_path / "staging"
    staging.mkdir()
    write = StageFiles(options, str(staging), **limits)
    return [row for out in write(iter(batches)) for row in out.to_pylist()]


def test_parquet_keeps_every_column_and_type(tmp_path: Path) -> None:
    options = Files(f"{tmp_path}/lake", "parquet", "zstd")
    (row,) = stage(tmp_path, options, batch(b"a", b"\xff"), batch(b"c"))
    table = pq.read_table(row["source"])
    assert table.to_pylist() == pa.Table.from_batches([batch(b"a", b"\xff", b"c")]).to_pylist()
    assert row["events"] == 3
    assert str(row["target"]).startswith(f"{tmp_path}/lake/part-")


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "none"])
def test_parquet_is_compressed_as_asked(tmp_path: Path, compression: Compression) -> None:
    (row,) = stage(tmp_path, Files(f"{tmp_path}/lake", "parquet", compression), batch(b"a" * 999))
    found = pq.ParquetFile(row["source"]).metadata.row_group(0).column(0).compression
    assert found == ("UNCOMPRESSED" if compression == "none" else compression.upper())


def test_parquet_grows_by_bounded_row_groups(tmp_path: Path) -> None:
    parts = [batch(*[b"x" * 100] * 50) for _ in range(10)]
    options = Files(f"{tmp_path}/lake")
    (row,) = stage(tmp_path, options, *parts, gathered_bytes=2 * parts[0].nbytes)
    metadata = pq.ParquetFile(row["source"]).metadata
    assert (metadata.num_rows, metadata.num_row_groups) == (500, 5)


def test_text_format_has_the_unchanged_bodies(tmp_path: Path) -> None:
    options = Files(f"{tmp_path}/lake", "text", "none")
    (row,) = stage(tmp_path, options, batch(b"a\xff\0", b"", None), batch(b"b").slice(0, 1))
    assert Path(str(row["source"])).read_bytes() == b"a\xff\0\n\n\nb\n"


def test_compressed_lines_are_readable_by_usual_tools(tmp_path: Path) -> None:
    options = Files(f"{tmp_path}/lake", "text", "gzip")
    (row,) = stage(tmp_path, options, batch(b"a", b"b"))
    assert str(row["source"]).endswith(".log.gz")
    assert gzip.decompress(Path(str(row["source"])).read_bytes()) == b"a\nb\n"


def test_each_directory_has_its_file_and_no_row_is_lost(tmp_path: Path) -> None:
    options = Files(f"{tmp_path}/lake/hour=%H", "text", "none")
    rows = stage(
        tmp_path,
        options,
        batch(b"0", b"1", b"00", hours=[0, 1, 0]),
        batch(b"11", b"000", hours=[1, 0]),
    )
    found = {
        str(row["target"]).split("/")[-2]: Path(str(row["source"])).read_bytes() for row in rows
    }
    assert found == {"hour=00": b"0\n00\n000\n", "hour=01": b"1\n11\n"}
    assert sum(int(str(row["events"])) for row in rows) == 5


def test_files_are_closed_by_least_recent_use(tmp_path: Path) -> None:
    """Three directories and two open files: a directory that is written to all the time has one
    file."""
    options = Files(f"{tmp_path}/lake/%H", "text", "none")
    parts = [batch(b"x", hours=[h]) for h in (0, 1, 0, 2, 0, 1, 0)]
    two = partial(OpenFiles, most_open=2)
    rows = stage(tmp_path, options, *parts, gathered_bytes=1, open_files=two)
    found = [(str(row["target"]).split("/")[-2], row["events"]) for row in rows]
    assert sorted(found) == [("00", 4), ("01", 1), ("01", 1), ("02", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 100])
def test_random_event_times_do_not_make_batches_small(tmp_path: Path, every: int) -> None:
    """All events, or one of a hundred, of any hour within the bound of `parse`, both ways."""
    chance, numbers = random.Random(1), range(50_000)
    hours = [chance.randrange(2 * 7 * 24) if n % every == 0 else 168 for n in numbers]
    options = Files(f"{tmp_path}/lake/%Y-%m-%d/%H", "text", "none")
    rows = stage(tmp_path, options, batch(*[b"x"] * len(hours), hours=hours))
    assert sum(int(str(row["events"])) for row in rows) == len(hours)
    assert len(rows) == len({str(row["target"]).rpartition("/")[0] for row in rows})
    moves = tuple((str(row["source"]), str(row["target"])) for row in rows)
    record = Commit(epoch=1, staging=("x",), files=4 * moves)
    assert len(codec.encode(record)) < paths.commit("web", "t@1").row.size_bytes


def test_more_files_than_a_commit_can_hold_are_reported_as_too_wide(tmp_path: Path) -> None:
    options = Files(f"{tmp_path}/lake/%Y/%m/%d/%H", "text", "none")
    events = batch(*[b"x"] * 11, hours=list(range(11)))
    (row,) = stage(tmp_path, options, events, open_files=TEN_FILES)
    assert row == {"source": None, "target": None, "events": 0, "refused": 0}
    with pytest.raises(BatchTooWideError):
        FilesSink(options, TASK).written([row])


def test_the_smallest_batch_is_never_too_wide() -> None:
    names = [(f"/{'x' * 1_000}/{number}",) * 2 for number in range(BatchSize.LEAST)]
    record = Commit(epoch=1, staging=("x",), files=tuple(names))
    assert len(codec.encode(record)) < paths.commit("web", "t@1").row.size_bytes


def test_events_with_refused_times_are_counted(tmp_path: Path) -> None:
    refused = pa.array(
        [[("ts_refused", "x")], [("k", "v")], []] * 2, batch(b"").schema.field(2).type
    )
    events = batch(*[b"x"] * 6).set_column(2, "attrs", refused)
    rows = stage(tmp_path, Files(f"{tmp_path}/lake"), events.slice(1, 4), batch(b"y"))
    assert [(row["events"], row["refused"]) for row in rows] == [(5, 1)]
    assert FilesSink(Files("/lake"), TASK).written(rows).refused == 1


def test_no_events_make_no_files(tmp_path: Path) -> None:
    assert stage(tmp_path, Files(f"{tmp_path}/lake"), batch()) == []
    assert list((tmp_path / "staging").iterdir()) == []


def test_full_file_is_closed_and_the_batch_continues_in_another(tmp_path: Path) -> None:
    options = Files(f"{tmp_path}/lake", "text", "none", roll=Roll(bytes=11))
    rows = stage(tmp_path, options, *[batch(b"1234567", b"8")] * 3, gathered_bytes=1)
    assert [row["events"] for row in rows] == [4, 2]


def test_column_of_too_many_values_makes_batches_small_and_few_files(tmp_path: Path) -> None:
    options = Files(f"{tmp_path}/lake/{{body}}", "text", "none")
    events = batch(*[b"%d" % n for n in range(500)])
    (row,) = stage(tmp_path, options, events, open_files=TEN_FILES)
    assert row["source"] is None
    assert len(list((tmp_path / "staging").iterdir())) <= 11


def test_success_marker_follows_the_files_of_its_commit_once_per_directory(tmp_path: Path) -> None:
    options = Files(f"{tmp_path}/lake/%H", "text", "none", marker=True)
    rows = stage(tmp_path, options, batch(b"a", b"b", hours=[0, 1]))
    again = StageFiles(options, f"{tmp_path}/staging")(iter([batch(b"c")]))
    rows += [row for out in again for row in out.to_pylist()]
    written = FilesSink(options, TASK).written(rows)
    targets = [target.removeprefix(f"{tmp_path}/lake/") for _, target in written.files]
    assert sorted(t for t in targets if "part-" not in t) == ["00/_SUCCESS", "01/_SUCCESS"]
    assert (written.events, len(targets)) == (3, 5)
    blocked = [(f"{tmp_path}/staging", f"{tmp_path}/lake/00/part-x")]
    (tmp_path / "lake" / "00" / "part-x" / "in-the-way").mkdir(parents=True)
    with pytest.raises(OSError, match="not empty"):
        file_store.LOCAL.rename([*written.files, *blocked])
    assert not list((tmp_path / "lake").rglob("_SUCCESS"))
    assert file_store.LOCAL.rename(written.files) == []
    assert len(list((tmp_path / "lake").rglob("_SUCCESS"))) == 2


def test_flat_files_have_no_nested_columns(tmp_path: Path) -> None:
    (row,) = stage(tmp_path, Files(f"{tmp_path}/lake", columns="flat"), batch(b"a"))
    assert pq.read_table(row["source"])["attrs"].to_pylist() == ['{"k":"v"}']


def test_file_names_are_never_used_twice(tmp_path: Path) -> None:
    options = Files(f"{tmp_path}/lake", "text", "none")
    (tmp_path / "staging").mkdir()
    work = StageFiles(options, str(tmp_path / "staging"))
    targets = [
        row["target"]
        for _ in range(50)
        for out in work(iter([batch(b"x")]))
        for row in out.to_pylist()
    ]
    assert len(set(targets)) == 50


def test_snappy_is_refused_for_lines() -> None:
    problem = ("compression", "json files take zstd, gzip or none")
    assert list(Files("/lake", "json", "snappy").problems()) == [problem]


@pytest.mark.parametrize(
    "this",
    [
        file_store.LOCAL,
        remote_store.RemoteFileStore(fs.SubTreeFileSystem("/", fs.LocalFileSystem())),
    ],
)
def test_every_file_store_keeps_the_contract(tmp_path: Path, this: file_store.FileStore) -> None:
    source, target = f"{tmp_path}/s/one", f"{tmp_path}/t/deep/one"
    assert this.directories(f"{tmp_path}/s") == []
    this.make_directory(f"{tmp_path}/s")
    this.make_directory(f"{tmp_path}/s")
    with this.open_output(source) as out:
        out.write(b"x")
    this.sync(source)
    assert this.rename([(source, target), (f"{tmp_path}/s/no", f"{tmp_path}/t/no")]) == [
        (f"{tmp_path}/s/no", f"{tmp_path}/t/no")
    ]
    assert Path(target).read_bytes() == b"x"
    assert this.rename([(source, target)]) == []
    assert (this.exists(source), this.exists(target)) == (False, True)
    assert this.directories(str(tmp_path)) == ["s", "t"]
    this.remove_tree(f"{tmp_path}/t")
    this.remove_tree(f"{tmp_path}/t")
    assert this.directories(str(tmp_path)) == ["s"]


def test_store_is_opened_by_path_or_uri() -> None:
    assert file_store.open_store("/data/web") == (file_store.LOCAL, "/data/web")
    assert file_store.open_store("file:///data/web") == (file_store.LOCAL, "/data/web")
    with pytest.raises(UserError, match="ftp://"):
        file_store.open_store("ftp://host/web")


OVERRIDE = "region=us-east-1&scheme=http&endpoint_override=localhost%3A9000"


def test_query_of_a_url_has_the_options_of_its_store() -> None:
    given, path = file_store.open_store(f"s3a://lake/web/x#y?{OVERRIDE}")
    assert path == "lake/web/x#y"
    assert isinstance(given, remote_store.RemoteFileStore)
    assert given.files.region == "us-east-1"
    assert file_store.open_store(f"s3a://lake/other?{OVERRIDE}")[0] is given
    with pytest.raises(UserError, match="bogus"):
        file_store.open_store("s3://lake/web?bogus=1")
    assert file_store.open_store("/data/what?x=1") == (file_store.LOCAL, "/data/what?x=1")


def test_credentials_are_references_until_a_store_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = Credentials(access_key="${secret:lake-id}", secret_key="${secret:lake-key}")
    options = Files(f"s3a://lake/web/%Y?{OVERRIDE}", credentials=keys)
    with pytest.raises(UserError, match="no secret lake-id"):
        FilesSink(options, TASK)
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_ID", "it-is-me-77")
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", "never-shown-77")
    (root,) = FilesSink(options, TASK).roots
    assert root.endswith("access_key=${secret:lake-id}&secret_key=${secret:lake-key}")
    assert "77" not in repr(FilesSink(options, TASK).stage(trial(), Attempt({root: root})).pending)
    first, path = file_store.open_store(root)
    assert path == "lake/web"
    assert file_store.open_store(root)[0] is first
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", "another-one-78")
    assert file_store.open_store(root)[0] is not first
    elsewhere = dict.fromkeys(["${secret:lake-id}", "${secret:lake-key}"], "x").__getitem__
    assert file_store.open_store(root, elsewhere)[1] == path
    assert place_of(root) == f"s3a://lake/web?{OVERRIDE}".replace("%3A", ":")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("AWS Error NO_SUCH_BUCKET during PutObject", UserError),
        ("AWS Error ACCESS_DENIED during HeadObject operation", UserError),
        ("AWS Error UNKNOWN (HTTP status 403) during PutObject", UserError),
        ("AWS Error UNKNOWN (HTTP status 429) during PutObject", UnavailableError),
        ("AWS Error SLOW_DOWN during PutObject", UnavailableError),
        ("AWS Error UNKNOWN (HTTP status 503) during PutObject", UnavailableError),
        ("AWS Error NETWORK_CONNECTION during PutObject", UnavailableError),
        ("Connection reset by peer", UnavailableError),
    ],
)
def test_store_errors_are_typed_by_the_needed_action(said: str, kind: type[Exception]) -> None:
    store = remote_store.RemoteFileStore(fs.LocalFileSystem(), "s3://lake")
    found = store.explained(OSError(f"{said} (Request ID: 1)"))
    assert type(found) is kind
    assert str(found) == f"s3://lake: {said}"


def test_path_below_a_url_keeps_its_query() -> None:
    assert file_store.below("s3://b/a?q=1", "c", "d") == "s3://b/a/c/d?q=1"
    assert file_store.below("s3://b/a/", "c") == "s3://b/a/c"
    assert file_store.below("/a?b", "c") == "/a?b/c"


def test_sink_stages_and_commits_below_a_url_with_a_query() -> None:
    """The query stays at the end of each path."""
    made: list[str] = []

    class Lake(file_store.LocalFileStore):
        def make_directory(self, path: str) -> None:
            made.append(path)

    (root,) = FilesSink(Files(f"s3://lake/web/%Y?{OVERRIDE}", "text", "none"), TASK).roots
    assert root == f"s3://lake/web?{OVERRIDE}"
    commits = Commits(FakeStore(), "web", "collect.0", lambda uri: (Lake(), uri))
    staging = commits.stage(root, "web.n1.0.a", 1)
    assert made == [staging]
    assert staging.startswith("s3://lake/web/_flumeng/web.n1.0.a.1.")
    assert staging.endswith(f"?{OVERRIDE}")


def test_the_console_shows_the_first_events_of_a_batch_and_counts_the_rest() -> None:
    (out,) = show(iter([batch(*[b"x"] * 15), batch(*[b"y"] * 15)]))
    (row,) = out.to_pylist()
    assert len(row["lines"]) == LINES_PER_BATCH
    assert row["events"] == 30


def test_console_output_has_no_terminal_control_characters() -> None:
    line = render({"body": b"\x1b[2J\x07\r\n\x9b\xc2\x9b\x7f", "host": "a\u202eb\u200b", "x": None})
    assert line.isprintable()
    assert "\\u001b[2J" in line
    assert "x" not in render({"x": None})


def test_long_console_line_is_cut_and_times_and_maps_are_readable() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert render({"ts": moment, "attrs": [("a", "b")]}) == (
        '{"ts": "2026-01-02 00:00:00+00:00", "attrs": {"a": "b"}}'
    )
    assert len(render({"body": b"x" * 10_000})) == LINE_CHARACTERS + len("...")
