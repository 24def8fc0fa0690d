"""Tables of Delta and Iceberg on a real S3 server: made, committed to once, and read back."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from flumeng.connectors.api.sink import Attempt, BatchId, Sink, Written
from flumeng.connectors.lakehouse.delta import DeltaLake
from flumeng.connectors.lakehouse.group_commit import GroupCommit
from flumeng.connectors.lakehouse.iceberg import IcebergTable
from flumeng.connectors.lakehouse.options import Catalog, Delta, Iceberg
from flumeng.connectors.lakehouse.tables import Caller, TableSink
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform.errors import UnavailableError
from flumeng.platform.options.locations import Credentials
from tests.live.own_server import need_own
from tests.testkit.servers.s3 import REGION, RealS3
from tests.testkit.servers.tables import TASK
from tests.testkit.waiting import retry

KEYS = Credentials(access_key="${secret:lake-id}", secret_key="${secret:lake-key}")
FORMATS = ["delta", "iceberg"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealS3]:
    server = RealS3(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def keys(server: RealS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_ID", server.access_key)
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", server.secret_key)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)


def sink(server: RealS3, form: str, place: Path, call: Caller | None = None) -> TableSink:
    if form == "delta":
        delta = Delta(server.location("delta"), ("host",), credentials=KEYS)
        return TableSink(DeltaLake(delta), GroupCommit(), TASK, call)
    warehouse = f"s3://{server.bucket}/warehouse"
    catalog = Catalog("sql", f"sqlite:///{place}/catalog.db", warehouse=warehouse)
    endpoint = server.endpoint
    options = Iceberg(
        catalog, "web.events", ("host",), endpoint=endpoint, region=REGION, credentials=KEYS
    )
    return TableSink(IcebergTable(options), GroupCommit(), TASK, call)


def rows(server: RealS3, form: str, place: Path) -> list[int]:
    """The rows that other readers with the keys see."""
    if form == "delta":
        options = {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
        }
        table = DeltaTable(f"s3://{server.bucket}/delta", storage_options=options)
        return sorted(table.to_pyarrow_table()["n"].to_pylist())
    catalog = load_catalog(
        "default",
        **{
            "type": "sql",
            "uri": f"sqlite:///{place}/catalog.db",
            "s3.endpoint": server.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": server.access_key,
            "s3.secret-access-key": server.secret_key,
        },
    )
    return sorted(catalog.load_table("web.events").scan().to_arrow()["n"].to_pylist())


def write(this: Sink, first: int, count: int) -> Written:
    """Write as an executor does, without other secrets."""
    spark: Any = None
    events = pa.table(
        {
            "n": pa.array(range(first, first + count), pa.int64()),
            "host": [f"h{n % 3}" for n in range(count)],
        }
    )
    stage = this.stage(LazyBatch(spark, 1, None, (), events.schema), Attempt()).all_arrow
    work = pickle.loads(pickle.dumps(stage))
    return this.written([row for out in work(iter(events.to_batches())) for row in out.to_pylist()])


@pytest.mark.parametrize("form", FORMATS)
def test_table_on_s3_takes_each_batch_once(server: RealS3, form: str, tmp_path: Path) -> None:
    this = sink(server, form, tmp_path)
    for number in range(3):
        written = write(this, number * 10, 10)
        assert written.commit
        for owner in (written.commit, written.commit):
            owner(BatchId("web.collect.0.x", number))
    again = write(sink(server, form, tmp_path), 20, 10)
    assert again.commit
    again.commit(BatchId("web.collect.0.x", 2))
    assert rows(server, form, tmp_path) == list(range(30))


@pytest.mark.parametrize("form", FORMATS)
def test_frozen_store_costs_one_timeout_and_shows_no_secret(
    server: RealS3, form: str, tmp_path: Path
) -> None:
    """The hung commit may end late, after the same batch was tried again."""
    need_own(server)
    call = Caller()
    written = write(sink(server, form, tmp_path, call), 100, 10)
    assert written.commit
    call.answer_seconds = 2.0
    server.freeze()
    began = time.monotonic()
    try:
        with pytest.raises(UnavailableError) as told:
            written.commit(BatchId("web.collect.0.y", 1))
    finally:
        server.thaw()
        call.answer_seconds = 20.0
    assert time.monotonic() - began < 15
    assert server.secret_key not in str(told.value)
    retry(partial(written.commit, BatchId("web.collect.0.y", 1)), UnavailableError)
    assert [n for n in rows(server, form, tmp_path) if n >= 100] == list(range(100, 110))
