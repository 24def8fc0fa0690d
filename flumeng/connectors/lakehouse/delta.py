"""Tables of Delta Lake, committed to without a JVM.

The number of the last batch of a series is in the table as an *application transaction*. Delta
takes a number twice and lower ones too, so this looks first; it refuses a commit through a handle
that is older than another commit of the same series.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.lakehouse import group_commit, partitions, table_schema
from flumeng.connectors.lakehouse.group_commit import Addition
from flumeng.connectors.lakehouse.options import Delta, partition
from flumeng.connectors.lakehouse.partitions import Partition
from flumeng.connectors.lakehouse.table_files import Layout, TableFile
from flumeng.connectors.lakehouse.tables import (
    LocalDirectory,
    OvertakenError,
    TableSink,
    imported,
    resolved,
    translated,
)
from flumeng.platform import delta_storage
from flumeng.platform.errors import ConflictError, FlumengError, UnavailableError, UserError

UNNAMEABLE = set(" ,;{}()\n\t=")
WRITABLE = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
    }
)
"""The writer features that the library commits with, and those that ``_check_table`` looks at by
what they are used for."""
SHORT_BYTES = 64
"""Of texts: longer ones are not told among a file's least and greatest values."""
_DAY = "_day"


class DeltaSink(TableSink):
    def __init__(self, options: Delta, task: TaskRevision) -> None:
        table = DeltaLake(options)
        super().__init__(table, options, task)
        self._look = table.look

    def probe(self) -> None:
        self._call(self._look)


class DeltaLake:
    """One table; see ``tables.Table``."""

    def __init__(self, options: Delta) -> None:
        self._deltalake = imported("deltalake", "delta")
        self._options = options
        self._secrets = resolved(options.credentials)
        self._uri, self._storage = delta_storage.of(options.location, self._secrets)
        self._log: LocalDirectory | None = None
        if self._uri.startswith("/"):
            self._log = LocalDirectory(f"{self._uri}/_delta_log")

    def prepare(self, events: pa.Schema) -> Layout:
        with translated(_meaning):
            table = self._load() or self._create(events)
            fit = self._fit(table, events, add=self._options.schema == "add")
            if fit.added:
                fields = self._deltalake.Schema.from_arrow(pa.schema(fit.added)).fields
                table.alter.add_columns(fields)
            parts = _partitions(table, events)
        by = {part.name for part in parts}
        return Layout(
            self._options.location,
            pa.schema([field for field in fit.files if field.name in events.names]),
            parts,
            tuple(field.name for field in fit.files if field.name not in by),
            self._options.compression,
            self._secrets,
        )

    def look(self) -> None:
        """Load the table, or see that there is none, which ``prepare`` would make."""
        with translated(_meaning):
            self._load()

    def add(self, additions: Sequence[Addition]) -> Sequence[Addition]:
        with translated(_meaning):
            table = self._load()
            if table is None:
                return additions
            taken, unfit = group_commit.to_commit(
                additions, table.transaction_version, partial(self._fits, table)
            )
            if taken:
                self._append(table, taken)
            if self._log is not None:
                self._log.sync()
        return unfit

    def _append(self, table: Any, additions: Sequence[Addition]) -> None:
        transaction = self._deltalake.transaction
        numbers = group_commit.numbers(additions).items()
        now = round(time.time() * 1000)
        table.create_write_transaction(
            [
                transaction.AddAction(
                    file.path, file.size_bytes, file.partition, now, True, json.dumps(stats(file))
                )
                for addition in additions
                for file in addition.files
            ],
            "append",
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=transaction.CommitProperties(
                app_transactions=[transaction.Transaction(*number) for number in numbers]
            ),
        )

    def _load(self) -> Any | None:
        """A handle of what the table is now; None when there is none."""
        try:
            return self._deltalake.DeltaTable(self._uri, storage_options=self._storage)
        except self._deltalake.exceptions.TableNotFoundError:
            return None

    def _create(self, events: pa.Schema) -> Any:
        by = [Partition(_name(*pair), *pair) for pair in map(partition, self._options.partition_by)]
        partitions.check(by, events)
        columns = pa.schema([field.with_nullable(True) for field in _with_days(events, by)])
        table_schema.check_names(columns)
        _check_fields(columns)
        self._deltalake.DeltaTable.create(
            self._uri,
            schema=columns,
            mode="ignore",
            partition_by=[part.name for part in by],
            storage_options=self._storage,
        )
        return self._load()

    def _fit(self, table: Any, events: pa.Schema, *, add: bool) -> table_schema.Fit:
        _check_table(table)
        parts = _partitions(table, events)
        partitions.check(parts, events)
        fit = table_schema.fit(
            _with_days(events, parts), pa.schema(table.schema().to_arrow()), add=add, widen=False
        )
        _check_fields(fit.added)
        return fit

    def _fits(self, table: Any, files: Sequence[TableFile]) -> bool:
        """Whether the table still has the columns and the partitions for which they were made."""
        schema = pa.schema(table.schema().to_arrow())
        if list(files[0].partition) != table.metadata().partition_columns:
            return False
        columns = {field.name: field.type for field in schema}
        return all(columns.get(field.name) == field.type for field in files[0].schema)


def stats(file: TableFile) -> dict[str, Any]:
    """What Delta's readers skip files by: how many rows, nulls, and least and greatest values."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, groups in _statistics(file.footer):
        nulls[name] = sum(group.null_count for group in groups)
        filled = [group for group in groups if group.num_values]
        bounds = [found for group in filled if (found := _bounds(group)) is not None]
        if bounds and len(bounds) == len(filled):
            least[name] = _json(min(low for low, _ in bounds))
            greatest[name] = _json(max(high for _, high in bounds))
    return {
        "numRecords": file.events,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }


def _statistics(footer: pq.FileMetaData) -> Iterator[tuple[str, list[pq.Statistics]]]:
    """Of each column that is no part of another, those of each row group; none where one lacks."""
    for number in range(footer.num_columns):
        if "." in (name := footer.schema.column(number).path):
            continue
        columns = [footer.row_group(g).column(number) for g in range(footer.num_row_groups)]
        found = [c.statistics for c in columns if c.is_stats_set and c.statistics.has_null_count]
        if len(found) == len(columns):
            yield name, found


def _bounds(group: pq.Statistics) -> tuple[Any, Any] | None:
    """The least and the greatest value, of types for which all readers agree on their JSON."""
    try:
        low, high = (group.min, group.max) if group.has_min_max else (None, None)
    except (OverflowError, ValueError):
        return None
    return (low, high) if all(map(_is_told, (low, high))) else None


def _is_told(value: Any) -> bool:
    if isinstance(value, str):
        return len(value.encode()) <= SHORT_BYTES
    return isinstance(value, int | date) and not isinstance(value, bool)


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        zone = "Z" if value.tzinfo else ""
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    return value.isoformat() if isinstance(value, date) else value


def _partitions(table: Any, events: pa.Schema) -> tuple[Partition, ...]:
    """How a table that is there is partitioned: by columns of the events, or the day of one."""
    found = []
    for name in table.metadata().partition_columns:
        column = name.removesuffix(_DAY)
        if name not in events.names and column in events.names:
            found.append(Partition(name, column, "day"))
        else:
            found.append(Partition(name, name))
    return tuple(found)


def _name(column: str, transform: str) -> str:
    return column if transform == "identity" else column + _DAY


def _with_days(events: pa.Schema, parts: Iterable[Partition]) -> pa.Schema:
    days = [part.name for part in parts if part.transform == "day"]
    return pa.schema([*events, *(pa.field(name, pa.date32()) for name in days)])


def _check_fields(fields: Iterable[pa.Field]) -> None:
    table_schema.check_types(fields)
    for field in fields:
        if UNNAMEABLE & set(field.name):
            raise UserError(f"a Delta table cannot have a column called {field.name!r}")


def _check_table(table: Any) -> None:
    """Raises UserError when the table asks of its writers what this one does not do."""
    settings = table.metadata().configuration
    asked = [name for name in settings if name.startswith("delta.constraints.")]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        asked.append("delta.columnMapping.mode")
    asked += [
        f"{key} of the column {field.name}"
        for field in table.schema().fields
        for key in field.metadata
        if key in ("delta.generationExpression", "delta.invariants")
        or key.startswith("delta.identity.")
    ]
    features = table.protocol().writer_features or ()
    asked += [f"the feature {name}" for name in sorted(set(features) - WRITABLE)]
    if asked:
        raise UserError(f"flumeng does not write into a Delta table with {asked[0]}")


def _meaning(error: Exception) -> FlumengError:
    """What an error of the library's means."""
    found = imported("deltalake.exceptions", "delta")
    text = _one_line(str(error))
    if isinstance(error, found.CommitFailedError):
        if "Concurrent transaction" in text:
            return ConflictError(f"another owner commits to the table: {text}")
        return OvertakenError(text)
    if isinstance(error, found.SchemaMismatchError | found.DeltaProtocolError):
        return UserError(text)
    return UnavailableError(text)


def _one_line(text: str) -> str:
    """Without colours, and without the stack that the library's messages may end with."""
    plain = re.sub(r"\x1b\[[0-9;]*m|↳", "", text).partition("\n   0:")[0]
    return " ".join(plain.split())
