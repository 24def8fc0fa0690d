"""The sink `files` on a real S3 server: what it stages, shows and leaves behind there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from flumeng.sinks.file_store import below, open_store
from flumeng.sinks.files import StageFiles
from flumeng.sinks.testing.s3 import RealS3
from flumeng.spec.sinks.files import Files

HOUR = 3_600_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealS3]:
    server = RealS3(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def lake(server: RealS3, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory of its own in the bucket."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.location(uuid.uuid4().hex)


def events(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([b"%d" % n for n in range(count)], pa.binary()),
            pa.array([n % 3 * HOUR for n in range(count)], pa.timestamp("us", "UTC")),
            pa.array(range(count), pa.int64()),
        ],
        ["body", "ts", "seq"],
    )


def read(server: RealS3, lake: str) -> list[int]:
    _, path = open_store(lake)
    found = ds.dataset(path, filesystem=server.files, format="parquet", partitioning="hive")
    return sorted(found.to_table(columns=["seq"])["seq"].to_pylist()) if found.files else []


def test_a_store_on_s3_keeps_the_contract(server: RealS3, lake: str) -> None:
    this, root = open_store(lake)
    source, target = f"{root}/s/one", f"{root}/t/deep/one"
    assert this.directories(f"{root}/s") == []
    this.make_directory(f"{root}/s")
    with this.open_output(source) as out:
        out.write(b"x")
    this.sync(source)
    missing = (f"{root}/s/no", f"{root}/t/no")
    assert this.rename([(source, target), missing]) == [missing]
    with server.files.open_input_stream(target) as found:
        assert found.read() == b"x"
    assert this.rename([(source, target)]) == []
    assert this.exists(target)
    assert not this.exists(f"{root}/t/no")
    assert this.directories(root) == ["s", "t"]
    this.remove_tree(f"{root}/s")
    this.remove_tree(f"{root}/s")
    assert this.rename([(source, target)]) == []
    this.remove_tree(f"{root}/t")
    assert this.rename([(source, target)]) == [(source, target)]
    assert this.directories(root) == []


def test_files_staged_on_s3_are_shown_once_and_leave_nothing(server: RealS3, lake: str) -> None:
    place, _, query = lake.partition("?")
    options = Files(f"{place}/hour=%H?{query}")
    staging = below(lake, "_flumeng", "web.n1.0.a.1.x")
    store, path = open_store(staging)
    store.make_directory(path)
    stage = StageFiles(options, staging)
    rows = [row for out in stage(iter([events(3000)])) for row in out.to_pylist()]
    assert len(rows) == 3
    moves = [(open_store(row["source"])[1], open_store(row["target"])[1]) for row in rows]
    assert read(server, lake) == []
    for _ in range(2):
        assert store.rename(moves) == []
        assert read(server, lake) == list(range(3000))
    store.remove_tree(path)
    selector = fs.FileSelector(open_store(lake)[1], recursive=True)
    left = [info.path for info in server.files.get_file_info(selector) if info.is_file]
    assert sorted(left) == sorted(target for _, target in moves)


def test_where_there_is_no_versitygw_moto_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FLUMENG_CACHE", str(tmp_path))
    monkeypatch.delenv("FLUMENG_TEST_S3", raising=False)
    server = RealS3(tmp_path)
    assert not server.keeps
    server.start()
    assert server.files.get_file_info(server.bucket).type == fs.FileType.Directory
    server.stop()
