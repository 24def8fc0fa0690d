"""Tables of Delta and Iceberg in a directory, for tests: our sinks into them, and how others see
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from flumeng.connectors.api.sink import Attempt, Row, Sink, TaskRevision
from flumeng.connectors.lakehouse.delta import DeltaLake, DeltaSink
from flumeng.connectors.lakehouse.group_commit import Addition, GroupCommit
from flumeng.connectors.lakehouse.iceberg import IcebergSink, IcebergTable
from flumeng.connectors.lakehouse.options import Catalog, Delta, Evolution, Iceberg
from flumeng.connectors.lakehouse.tables import Table, TableSink
from flumeng.events.lazy_batch import LazyBatch

TASK = TaskRevision("web", "collect.0", 1)
SPARK: Any = None


Before = Callable[[Sequence[Addition]], None]


class OvertakenDelta(DeltaLake):
    """``before`` is called between each look at the table and the commit after it."""

    def __init__(self, options: Delta, before: Before) -> None:
        super().__init__(options)
        self._before = before

    def _append(self, table: Any, additions: Sequence[Addition]) -> None:
        self._before(additions)
        super()._append(table, additions)


class OvertakenIceberg(IcebergTable):
    """As ``OvertakenDelta``."""

    def __init__(self, options: Iceberg, before: Before) -> None:
        super().__init__(options)
        self._before = before

    def _append(self, table: Any, additions: Sequence[Addition]) -> None:
        self._before(additions)
        super()._append(table, additions)


class Lake(Protocol):
    """A table of one format in a directory, and its content for other readers."""

    def sink(self, *by: str, schema: Evolution = "add", task: TaskRevision = TASK) -> TableSink: ...

    def our_table(self, *by: str, before: Before | None = None) -> Table:
        """The table that a sink writes to. ``before`` is called between look and commit."""

    def rows(self) -> pa.Table: ...

    def append(self, rows: pa.Table) -> None:
        """Append as a foreign writer does."""

    def drop(self, column: str) -> None:
        """Take a column away."""

    def commits(self) -> int:
        """How many commits have added rows."""


class DeltaDirectory:
    def __init__(self, place: Path) -> None:
        self.place = str(place / "delta")

    def sink(self, *by: str, schema: Evolution = "add", task: TaskRevision = TASK) -> TableSink:
        return DeltaSink(Delta(self.place, by, schema), task)

    def our_table(self, *by: str, before: Before | None = None) -> Table:
        options = Delta(self.place, by)
        return DeltaLake(options) if before is None else OvertakenDelta(options, before)

    def rows(self) -> pa.Table:
        return DeltaTable(self.place).to_pyarrow_table()

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.place, rows, mode="append")

    def drop(self, column: str) -> None:
        rows = self.rows().drop_columns([column])
        write_deltalake(self.place, rows, mode="overwrite", schema_mode="overwrite")

    def commits(self) -> int:
        return sum(one["operation"] == "WRITE" for one in DeltaTable(self.place).history())


class IcebergDirectory:
    def __init__(self, place: Path) -> None:
        self.catalog = Catalog("sql", f"sqlite:///{place}/catalog.db", warehouse=f"{place}/lake")

    def sink(self, *by: str, schema: Evolution = "add", task: TaskRevision = TASK) -> TableSink:
        return IcebergSink(Iceberg(self.catalog, "web.events", by, schema), task)

    def our_table(self, *by: str, before: Before | None = None) -> Table:
        options = Iceberg(self.catalog, "web.events", by)
        return IcebergTable(options) if before is None else OvertakenIceberg(options, before)

    def table(self) -> Any:
        uri, warehouse = self.catalog.uri, self.catalog.warehouse
        return load_catalog("default", type="sql", uri=uri, warehouse=warehouse).load_table(
            "web.events"
        )

    def rows(self) -> pa.Table:
        return self.table().scan().to_arrow()

    def append(self, rows: pa.Table) -> None:
        self.table().append(rows)

    def drop(self, column: str) -> None:
        with self.table().update_schema() as update:
            update.delete_column(column)

    def commits(self) -> int:
        return len(self.table().snapshots())


def elsewhere(sink: TableSink) -> TableSink:
    """``sink`` as in another process, without shared commits."""
    sink._commits = GroupCommit()
    return sink


def staged(sink: Sink, rows: pa.Table, attempt: Attempt | None = None) -> list[Row]:
    """The rows that the stage of one split yields."""
    batch = LazyBatch(SPARK, 1, None, (), rows.schema)
    stage = sink.stage(batch, attempt or Attempt()).all_arrow
    assert stage is not None
    return [row for out in stage(iter(rows.to_batches())) for row in out.to_pylist()]
