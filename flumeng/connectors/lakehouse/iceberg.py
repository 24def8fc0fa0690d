"""Apache Iceberg tables, committed to without a JVM. A series' batch number is a table property,
set in the transaction that adds the batch's files. Commits through outdated handles are rejected;
the library must not retry them, as it would not reread the number."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlencode

import pyarrow as pa

from flumeng import __version__
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.lakehouse import group_commit, iceberg_snapshots, partitions, table_schema
from flumeng.connectors.lakehouse.group_commit import Addition
from flumeng.connectors.lakehouse.options import Catalog, Iceberg, Transform, partition
from flumeng.connectors.lakehouse.partitions import Partition
from flumeng.connectors.lakehouse.table_files import Layout, TableFile
from flumeng.connectors.lakehouse.tables import OvertakenError, Table, TableSink, imported
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.options.locations import located, store_of
from flumeng.platform.scrubbing import Secret

NUMBER = "flumeng."
"""Prefix of the table property with a series' batch number."""
TIME_OUTS = {"connect_timeout": "5", "tcp_user_timeout": "20000", "keepalives_idle": "10"}
RETRIES = "commit.retry.num-retries"
MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "50"}
"""Default properties: each commit writes a list of all manifests, so there should be few."""
NEW_TABLE = {"write.metadata.delete-after-commit.enabled": "true"}
"""Properties of new tables: each commit writes all metadata, so old files are deleted."""
FIELD_ID = b"PARQUET:field_id"
WRITTEN_BY = {iceberg_snapshots.WRITER: __version__}
STORAGE = {
    "access_key": "s3.access-key-id",
    "secret_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}
TRANSFORMS = ("identity", "year", "month", "day", "hour")


class IcebergSink(TableSink):
    def __init__(self, options: Iceberg, task: TaskRevision) -> None:
        super().__init__(IcebergTable(options), group_commit.of(options), task)


class IcebergTable(Table):
    def __init__(self, options: Iceberg) -> None:
        super().__init__(options)
        self._catalogs = imported("pyiceberg.catalog", "iceberg")
        logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # it logs a line for each column
        self._options = options
        self._properties = _properties(options) | _storage(options, self._secrets)
        self._opened: Any = None

    def _layout(self, table: Any, events: pa.Schema) -> Layout:
        may = self._options.schema == "add"
        parts = _partitions(table)
        partitions.check(parts, events)
        fit = table_schema.fit(events, _columns(table), add=may, widen=may)
        table_schema.check_types(fit.added)
        _check_unmapped(table, fit.added)
        if fit.added or fit.widened:
            with table.update_schema() as update:
                update.union_by_name(pa.schema([*fit.added, *fit.widened]))
            table = self._load()
            fit = table_schema.fit(events, _columns(table), add=False, widen=False)
        return Layout(
            self._located(_directory(table)),
            _identified(fit.files, _columns(table)),
            parts,
            tuple(events.names),
            self._options.compression,
            self._secrets,
        )

    def _append(self, table: Any, additions: Sequence[Addition]) -> None:
        """Commit the additions, and expire snapshots if the options say so. Table properties are
        overridden for this commit only."""
        once = {**MERGING, **table.properties, RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        keep = self._options.snapshots
        gone = []
        with _transaction(table) as transaction:
            with transaction.update_snapshot(WRITTEN_BY).merge_append() as append:
                for addition in additions:
                    for file in addition.files:
                        append.append_data_file(_data_file(table.metadata, file))
            numbers = group_commit.numbers(additions).items()
            if numbers:
                transaction.set_properties({NUMBER + name: str(last) for name, last in numbers})
            if keep.expire:
                gone = iceberg_snapshots.expired(
                    transaction.table_metadata, keep, round(time.time() * 1000)
                )
            if gone:
                update = imported("pyiceberg.table.update.snapshot", "iceberg").ExpireSnapshots
                update(transaction).by_ids([snapshot.snapshot_id for snapshot in gone]).commit()
        if gone:
            iceberg_snapshots.remove_files(table, gone)

    def _located(self, directory: str) -> str:
        """Return the location for ``file_store``; on S3 with server, region and credentials."""
        if store_of(directory) != "s3":
            return directory
        query: dict[str, str] = {}
        if self._options.endpoint is not None:
            protocol, _, server = self._options.endpoint.partition("://")
            query |= {"scheme": protocol, "endpoint_override": server.rstrip("/")}
        if self._options.region is not None:
            query["region"] = self._options.region
        location = f"{directory}?{urlencode(query)}" if query else directory
        return located(location, self._options.credentials)

    def _metadata_location(self, table: Any) -> str:
        return f"{table.location().removeprefix('file://')}/metadata"

    def _load(self) -> Any | None:
        errors = imported("pyiceberg.exceptions", "iceberg")
        if self._opened is None:
            self._opened = self._catalogs.load_catalog(
                self._options.catalog.name, **self._properties
            )
        try:
            return self._opened.load_table(self._options.table)
        except (errors.NoSuchTableError, errors.NoSuchNamespaceError):
            return None

    def _create(self, events: pa.Schema) -> Any:
        errors = imported("pyiceberg.exceptions", "iceberg")
        transforms = imported("pyiceberg.transforms", "iceberg")
        by = [Partition("", *pair) for pair in map(partition, self._options.partition_by)]
        partitions.check(by, events)
        table_schema.check_names(events)
        table_schema.check_types(events)
        columns = pa.schema([field.with_nullable(True) for field in events])
        self._opened.create_namespace_if_not_exists(self._options.table.rpartition(".")[0])
        try:
            creation = self._opened.create_table_transaction(
                self._options.table, schema=columns, properties=NEW_TABLE
            )
            with creation, creation.update_spec() as update:
                for part in by:
                    update.add_field(part.column, transforms.parse_transform(part.transform))
        except errors.TableAlreadyExistsError:
            pass  # another writer was first
        return self._load()

    def _number(self, table: Any, series: str) -> int | None:
        number = table.properties.get(NUMBER + series)
        return None if number is None else int(number)

    def _fits(self, table: Any, files: Sequence[TableFile]) -> bool:
        columns = {field.name: _identity(field) for field in _columns(table)}
        names = [part.name for part in _partitions(table)]
        return all(
            list(file.partition) == names
            and all(columns.get(field.name) == _identity(field) for field in file.schema)
            for file in files
        )

    def _meaning(self, error: Exception) -> FlumengError:
        exceptions = imported("pyiceberg.exceptions", "iceberg")
        first = (str(error).strip().splitlines() or [""])[0]
        text = f"{type(error).__name__}: {first}"
        if isinstance(error, OverflowError):
            return UserError(
                "Iceberg cannot store times and dates outside of the years 1 to 9999: drop such "
                "events with where"
            )
        if isinstance(error, exceptions.CommitFailedException):
            return OvertakenError(text)
        wrong = (
            ValueError,
            exceptions.NotInstalledError,
            exceptions.UnauthorizedError,
            exceptions.ForbiddenError,
            exceptions.BadRequestError,
            exceptions.OAuthError,
        )
        return UserError(text) if isinstance(error, wrong) else UnavailableError(text)


def _columns(table: Any) -> pa.Schema:
    """Return the table's columns in types that Spark has too."""
    return pa.schema([field.with_type(_plain(field.type)) for field in table.schema().as_arrow()])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field).with_nullable(True) for field in kind])
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain(field.type))


def _identified(files: pa.Schema, table: pa.Schema) -> pa.Schema:
    """Return ``files`` with the table's field ids, by which readers find columns. A column of
    another type than in the table stays without."""
    return pa.schema(
        [
            table.field(column.name).with_nullable(column.nullable)
            if table.field(column.name).type == column.type
            else column
            for column in files
        ]
    )


def _identity(field: pa.Field) -> tuple[pa.DataType, bytes | None]:
    return field.type, (field.metadata or {}).get(FIELD_ID)


def _check_unmapped(table: Any, added: Sequence[pa.Field]) -> None:
    """Raise UserError for a new column that the table's name mapping contains: files without field
    ids would show old values in it."""
    mapping = table.metadata.name_mapping()
    names = {name for entry in (mapping.root if mapping else ()) for name in entry.names}
    for field in added:
        if field.name in names:
            raise UserError(
                f"the column {field.name} was renamed or deleted by another writer, and files "
                "without field ids still have it: rename the column in the flow, or rewrite the "
                "table's files"
            )


def _transaction(table: Any) -> Any:
    """Return a transaction with cached metadata: the library copies all metadata on each access."""
    base: Any = imported("pyiceberg.table", "iceberg").Transaction

    class Transaction(base):  # type: ignore[misc]
        @property
        def table_metadata(self) -> Any:
            changes = len(self._updates)
            if getattr(self, "_cached", (-1, None))[0] != changes:
                self._cached = changes, super().table_metadata
            return self._cached[1]

    return Transaction(table)


def _data_file(metadata: Any, file: TableFile) -> Any:
    """Return a file's manifest entry, from the footer that the executor sent."""
    files = imported("pyiceberg.io.pyarrow", "iceberg")
    manifest = imported("pyiceberg.manifest", "iceberg")
    schema = metadata.schema()
    statistics = files.data_file_statistics_from_parquet_metadata(
        parquet_metadata=file.footer,
        stats_columns=files.compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=files.parquet_path_to_id_mapping(schema),
    )
    return manifest.DataFile.from_args(
        content=manifest.DataFileContent.DATA,
        file_path=file.uri,
        file_format=manifest.FileFormat.PARQUET,
        partition=statistics.partition(metadata.spec(), schema),
        file_size_in_bytes=file.size_bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _partitions(table: Any) -> tuple[Partition, ...]:
    parts = []
    for field in table.spec().fields:
        name = table.schema().find_column_name(field.source_id)
        transform = str(field.transform)
        if transform not in TRANSFORMS:
            raise UserError(f"unsupported partition transform: {field.transform} of {name}")
        parts.append(Partition(field.name, name, cast(Transform, transform)))
    return tuple(parts)


def _directory(table: Any) -> str:
    given = table.properties.get("write.data.path")
    return str(given or f"{table.location()}/data")


def _properties(options: Iceberg) -> dict[str, str]:
    catalog = options.catalog
    properties = {"type": catalog.type, "uri": _address(catalog)}
    if catalog.warehouse is not None:
        properties["warehouse"] = catalog.warehouse
    for name in ("token", "credential"):
        if (reference := getattr(catalog, name)) is not None:
            properties[name] = secrets.resolve(reference)
    return properties


def _address(catalog: Catalog) -> str:
    """Return the catalog's address; with the password of an SQL catalog, and with driver and time
    limits for PostgreSQL."""
    if catalog.type != "sql":
        return catalog.uri
    url = imported("sqlalchemy", "iceberg").make_url(catalog.uri)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg2").update_query_dict(TIME_OUTS)
    if catalog.password is not None:
        url = url.set(password=secrets.resolve(catalog.password))
    return str(url.render_as_string(hide_password=False))


def _storage(options: Iceberg, resolved: Mapping[str, Secret]) -> dict[str, str]:
    properties = {"s3.connect-timeout": "5", "s3.request-timeout": "10"}
    properties |= {"s3.endpoint": options.endpoint} if options.endpoint is not None else {}
    properties |= {"s3.region": options.region} if options.region is not None else {}
    given = options.credentials.given if options.credentials is not None else {}
    return properties | {STORAGE[name]: resolved.get(value, value) for name, value in given.items()}
