"""The sink `files` on a real S3 server: its staged, shown and leftover objects."""

from __future__ import annotations

import os
import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from flumeng.agent.collector.commit import Commits
from flumeng.agent.standalone.embedded import free_port
from flumeng.connectors.api.sink import Attempt
from flumeng.connectors.files.options import Files
from flumeng.connectors.files.sink import FilesSink
from flumeng.control.zookeeper import ABSENT
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform import remote_store
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.file_store import below, open_store
from flumeng.platform.options.locations import Credentials, located, place_of
from tests.live.own_server import need_own
from tests.live.sink_examples import example, first_sink
from tests.testkit.collector import TASK
from tests.testkit.servers.s3 import RealS3
from tests.testkit.store import FakeStore
from zkschema import paths as zk
from zkschema.records import Commit

HOUR = 3_600_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealS3]:
    server = RealS3(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


KEYS = Credentials(access_key="${secret:lake-id}", secret_key="${secret:lake-key}")


@pytest.fixture
def lake(server: RealS3, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory of its own in the bucket."""
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_ID", server.access_key)
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", server.secret_key)
    return located(server.location(uuid.uuid4().hex), KEYS)


def staged(options: Files, *batches: pa.RecordBatch) -> list[tuple[str, str]]:
    """The rows that an executor without other secrets stages from ``batches``."""
    sink = FilesSink(options, TASK)
    (root,) = sink.roots
    staging = below(root, "_flumeng", "web.n1.0.a.1.x")
    tail = sink.stage(batch_of(batches[0].schema), Attempt({root: staging})).all_arrow
    rows = [
        row for out in pickle.loads(pickle.dumps(tail))(iter(batches)) for row in out.to_pylist()
    ]
    return [(row["source"], row["target"]) for row in rows]


def paths(moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(open_store(source)[1], open_store(target)[1]) for source, target in moves]


def batch_of(schema: pa.Schema) -> LazyBatch:
    spark: Any = None
    return LazyBatch(spark, 1, None, (), schema)


def under(lake: str, pattern: str) -> str:
    place, _, query = place_of(lake).partition("?")
    return f"{place}/{pattern}?{query}"


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
    moves = paths(staged(Files(under(lake, "hour=%H"), credentials=KEYS), events(3000)))
    assert len(moves) == 3
    store, path = open_store(below(lake, "_flumeng", "web.n1.0.a.1.x"))
    assert read(server, lake) == []
    for _ in range(2):
        assert store.rename(moves) == []
        assert read(server, lake) == list(range(3000))
    store.remove_tree(path)
    selector = fs.FileSelector(open_store(lake)[1], recursive=True)
    left = [info.path for info in server.files.get_file_info(selector) if info.is_file]
    assert sorted(left) == sorted(target for _, target in moves)


def test_the_example_of_the_page_runs(server: RealS3, lake: str) -> None:
    place = under(lake, "raw/dt=%Y-%m-%d")
    given, _, query = place.partition("?")
    changes = {
        "s3a://lake/raw/dt=%Y-%m-%d": given,
        "endpoint_override=minio.example:9000&scheme=https&region=us-east-1": query,
        ", ca: /etc/flumeng/ca.pem": "",
    }
    moves = paths(staged(first_sink(example("flow: lake", changes)), events(9)))
    assert open_store(lake)[0].rename(moves) == []
    assert read(server, under(lake, "raw")) == list(range(9))


def test_s3_errors_to_fix_differ_from_s3_errors_to_retry(
    server: RealS3, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = lake.replace(server.bucket, "nobodys-bucket")
    with pytest.raises(UserError, match=r"s3a://nobodys-bucket: .*NO_SUCH_BUCKET"):
        staged(Files(place_of(elsewhere), credentials=KEYS), events(3))
    down = place_of(lake).replace(server.address, f"127.0.0.1:{free_port()}")
    with pytest.raises(UnavailableError, match="Could not connect"):
        staged(Files(down), events(3))
    if server.keeps:
        monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", "a-wrong-one")
        with pytest.raises(UserError, match="SIGNATURE_DOES_NOT_MATCH") as told:
            staged(Files(place_of(lake), credentials=KEYS), events(3))
        assert "a-wrong-one" not in str(told.value)


def test_any_host_with_the_secrets_finishes_a_commit(
    server: RealS3, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner was killed when it had copied a half of the files."""
    options = Files(under(lake, "hour=%H"), credentials=KEYS)
    moves = staged(options, events(300))
    open_store(lake)[0].rename(paths(moves)[:1])
    staging = below(lake, "_flumeng", "web.n1.0.a.1.x")
    store = FakeStore()
    store.make_root()
    for folder in (zk.all_commits(), zk.commits("web")):
        store.write(folder, None, ABSENT)
    record = Commit(epoch=1, staging=(staging,), files=tuple(moves))
    store.write(zk.commit("web", "collect.0@1"), record, ABSENT)
    told = b"".join(store.dump().values())
    assert b"lake-id" in told
    assert server.secret_key.encode() not in told

    key = os.environ["FLUMENG_SECRET_LAKE_KEY"]
    monkeypatch.delenv("FLUMENG_SECRET_LAKE_KEY")
    with pytest.raises(UserError, match="there is no secret lake-key"):
        Commits(store, "web", "collect.0").recover([])
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", key)
    Commits(store, "web", "collect.1").recover([staging])
    assert store.children(zk.commits("web")) == []
    assert read(server, lake) == list(range(300))
    assert open_store(lake)[0].directories(open_store(below(lake, "_flumeng"))[1]) == []


@pytest.mark.parametrize(("refusals", "fails"), [(2, False), (99, True)])
def test_busy_store_is_retried_a_few_times(
    refusals: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Busy(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked.append(self.path)
            busy = len(asked) <= refusals
            answer = b"<Error><Code>SlowDown</Code></Error>" if busy else b"<CopyObjectResult/>"
            self.send_response(503 if busy else 200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    busy = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=busy.serve_forever, daemon=True).start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    address = f"127.0.0.1:{busy.server_port}"
    store, path = open_store(f"s3://lake/x?endpoint_override={address}&scheme=http&region=x")
    if fails:
        with pytest.raises(UnavailableError, match="SLOW_DOWN"):
            store.rename([(path, f"{path}2")])
        assert len(asked) == remote_store.ATTEMPTS
    else:
        assert store.rename([(path, f"{path}2")]) == []
        assert len(asked) == 3
    busy.shutdown()
    busy.server_close()


@pytest.mark.long
def test_frozen_server_is_given_up_in_bounded_time(
    server: RealS3, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_own(server)
    monkeypatch.setattr(remote_store, "SILENT_SECONDS", 1)
    monkeypatch.setattr(remote_store, "ATTEMPTS", 1)
    remote_store._connected.cache_clear()
    moves = staged(Files(place_of(lake), credentials=KEYS), *[events(10)] * 20)
    store, _ = open_store(lake)
    server.freeze()
    began = time.monotonic()
    try:
        with pytest.raises(UnavailableError, match="Less than 1 bytes"):
            staged(Files(place_of(lake), credentials=KEYS), events(3))
        with pytest.raises(UnavailableError):
            store.rename(paths(moves))
        assert time.monotonic() - began < 30
    finally:
        server.thaw()
        remote_store._connected.cache_clear()
    assert store.rename(paths(moves)) == []
    assert len(read(server, lake)) == 200


def test_objects_of_a_killed_server_are_there_after_its_restart(server: RealS3, lake: str) -> None:
    need_own(server)
    if not server.keeps:
        pytest.skip("moto keeps its objects in memory; put versitygw on the path")
    moves = paths(staged(Files(place_of(lake), credentials=KEYS), events(10)))
    store, _ = open_store(lake)
    server.kill()
    with pytest.raises(UnavailableError):
        store.rename(moves)
    server.start()
    assert store.rename(moves) == []
    assert read(server, lake) == list(range(10))


def test_moto_serves_where_versitygw_is_missing(
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
