"""Delta Lake tables, committed to without a JVM. A batch number is stored as an *application
transaction*. Delta accepts repeated and lower numbers, so the number is read first. A commit is
rejected if its table handle is older than another commit of the same series of batches."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.lakehouse import group_commit, partitions, table_schema
from flumeng.connectors.lakehouse.group_commit import Addition
from flumeng.connectors.lakehouse.options import Delta, partition
from flumeng.connectors.lakehouse.partitions import Partition
from flumeng.connectors.lakehouse.table_files import Layout, TableFile
from flumeng.connectors.lakehouse.tables import OvertakenError, Table, TableSink, imported
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
"""Writer features that the library supports, or whose use ``_check_table`` rejects."""
SHORT_BYTES = 64
"""Longest texts, in bytes, that get minimum and maximum values."""
_DAY = "_day"


class DeltaSink(TableSink):
    def __init__(self, options: Delta, task: TaskRevision) -> None:
        super().__init__(DeltaLake(options), group_commit.of(options), task)


class DeltaLake(Table):
    def __init__(self, options: Delta) -> None:
        super().__init__(options)
        self._deltalake = imported("deltalake", "delta")
        self._options = options
        self._uri, self._storage = delta_storage.of(options.location, self._secrets)

    def _layout(self, table: Any, events: pa.Schema) -> Layout:
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

    def _number(self, table: Any, series: str) -> int | None:
        number: int | None = table.transaction_version(series)
        return number

    def _metadata_location(self, _table: Any) -> str:
        return f"{self._uri}/_delta_log"

    def _fits(self, table: Any, files: Sequence[TableFile]) -> bool:
        schema = pa.schema(table.schema().to_arrow())
        if list(files[0].partition) != table.metadata().partition_columns:
            return False
        columns = {field.name: field.type for field in schema}
        return all(columns.get(field.name) == field.type for field in files[0].schema)

    def _meaning(self, error: Exception) -> FlumengError:
        exceptions = imported("deltalake.exceptions", "delta")
        text = _one_line(str(error))
        if isinstance(error, exceptions.CommitFailedError):
            if "Concurrent transaction" in text:
                return ConflictError(f"another owner of the task commits to the table: {text}")
            return OvertakenError(text)
        if isinstance(error, exceptions.SchemaMismatchError | exceptions.DeltaProtocolError):
            return UserError(text)
        return UnavailableError(text)


def stats(file: TableFile) -> dict[str, Any]:
    """Return a file's statistics, by which Delta readers skip files."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, groups in _statistics(file.footer):
        nulls[name] = sum(group.null_count for group in groups)
        filled = [group for group in groups if group.num_values]
        bounds = [bound for group in filled if (bound := _bounds(group)) is not None]
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
    """Yield statistics of all row groups by top-level column; incomplete columns are omitted."""
    for number in range(footer.num_columns):
        if "." in (name := footer.schema.column(number).path):
            continue
        columns = [footer.row_group(g).column(number) for g in range(footer.num_row_groups)]
        whole = [c.statistics for c in columns if c.is_stats_set and c.statistics.has_null_count]
        if len(whole) == len(columns):
            yield name, whole


def _bounds(group: pq.Statistics) -> tuple[Any, Any] | None:
    """Return minimum and maximum; None if they are unknown, texts over SHORT_BYTES, or of a type
    that readers interpret differently in JSON, such as floats."""
    try:
        low, high = (group.min, group.max) if group.has_min_max else (None, None)
    except (OverflowError, ValueError):
        return None
    return (low, high) if all(map(_is_exact, (low, high))) else None


def _is_exact(value: Any) -> bool:
    if isinstance(value, str):
        return len(value.encode()) <= SHORT_BYTES
    return isinstance(value, int | date) and not isinstance(value, bool)


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        zone = "Z" if value.tzinfo else ""
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    return value.isoformat() if isinstance(value, date) else value


def _partitions(table: Any, events: pa.Schema) -> tuple[Partition, ...]:
    """Return how a table is partitioned: by columns of the events, or, for a name like ``ts_day``,
    by the day of a column ``ts``."""
    parts = []
    for name in table.metadata().partition_columns:
        column = name.removesuffix(_DAY)
        if name not in events.names and column in events.names:
            parts.append(Partition(name, column, "day"))
        else:
            parts.append(Partition(name, name))
    return tuple(parts)


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
    """Raise UserError when the table needs an unsupported writer feature."""
    settings = table.metadata().configuration
    unsupported = [name for name in settings if name.startswith("delta.constraints.")]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        unsupported.append("delta.columnMapping.mode")
    unsupported += [
        f"{key} of the column {field.name}"
        for field in table.schema().fields
        for key in field.metadata
        if key in ("delta.generationExpression", "delta.invariants")
        or key.startswith("delta.identity.")
    ]
    features = table.protocol().writer_features or ()
    unsupported += [f"the feature {name}" for name in sorted(set(features) - WRITABLE)]
    if unsupported:
        raise UserError(f"flumeng cannot write into a Delta table with {unsupported[0]}")


def _one_line(text: str) -> str:
    """Return the text in one line, without colours and the library's stack trace."""
    plain = re.sub(r"\x1b\[[0-9;]*m|↳", "", text).partition("\n   0:")[0]
    return " ".join(plain.split())
