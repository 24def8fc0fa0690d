"""An Iceberg catalog in a real PostgreSQL: killed, frozen, and each batch once all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from flumeng.connectors.api.sink import BatchId
from flumeng.connectors.lakehouse.group_commit import GroupCommit
from flumeng.connectors.lakehouse.iceberg import IcebergTable
from flumeng.connectors.lakehouse.options import Catalog, Iceberg
from flumeng.connectors.lakehouse.tables import Caller, TableSink
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.own_server import need_own
from tests.testkit.servers.postgres import RealPostgres
from tests.testkit.servers.tables import TASK, staged
from tests.testkit.waiting import retry


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealPostgres]:
    try:
        server = RealPostgres()
    except UserError as error:
        pytest.skip(str(error))
    server.start()
    monkeypatch.setenv("FLUMENG_SECRET_CATALOG", server.password)
    yield server
    server.close()


def test_killed_and_frozen_catalog_takes_each_batch_once(
    server: RealPostgres, tmp_path: Path
) -> None:
    need_own(server)
    uri = f"postgresql://{server.username}@{server.host}:{server.port}/{server.database}"
    catalog = Catalog("sql", uri, warehouse=f"file://{tmp_path}/lake", password="${secret:catalog}")
    options = Iceberg(catalog, "web.events")
    call = Caller()
    sink = TableSink(IcebergTable(options), GroupCommit(), TASK, call)

    def commit(number: int) -> None:
        events = pa.table({"n": pa.array([number], pa.int64())})
        show = sink.written(staged(sink, events)).commit
        assert show
        show(BatchId("web.collect.0.x", number))

    commit(1)
    server.kill()
    with pytest.raises(UnavailableError) as told:
        commit(2)
    assert server.password not in str(told.value)
    server.start()
    commit(2)
    call.answer_seconds = 3.0
    server.freeze()
    with pytest.raises(UnavailableError, match="did not respond within 3 s"):
        commit(3)
    server.thaw()
    call.answer_seconds = 20.0
    retry(lambda: commit(3), UnavailableError, "what hung has not ended", seconds=30)
    commit(3)
    read = uri.replace("@", f":{server.password}@").replace(":", "+psycopg2:", 1)
    table = load_catalog("default", type="sql", uri=read).load_table("web.events")
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [1, 2, 3]
