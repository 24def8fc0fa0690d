"""Tables of Apache Iceberg, committed to without a JVM.

The number of the last batch of a series is a property of the table, set in the transaction that
adds the batch's files; a transaction may have batches of several series. A commit is refused when
the table has changed since its handle was made; the library would then repeat it without a look, so
here it may not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
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
from flumeng.connectors.lakehouse.tables import (
    LocalDirectory,
    OvertakenError,
    TableSink,
    imported,
    resolved,
    translated,
)
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.options.locations import located, store_of
from flumeng.platform.scrubbing import Secret

NUMBER = "flumeng."
"""The property of a series begins with this."""
TIME_OUTS = {"connect_timeout": "5", "tcp_user_timeout": "20000", "keepalives_idle": "10"}
RETRIES = "commit.retry.num-retries"
MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "50"}
"""Unless the table says otherwise: a commit writes a list of all manifests, so these are few."""
NEW_TABLE = {"write.metadata.delete-after-commit.enabled": "true"}
"""Each commit writes all metadata again: old ones go by themselves."""
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
        table = IcebergTable(options)
        super().__init__(table, options, task)
        self._look = table.look

    def probe(self) -> None:
        self._call(self._look)


class IcebergTable:
    """One table of a catalog; see ``tables.Table``."""

    def __init__(self, options: Iceberg) -> None:
        self._catalogs = imported("pyiceberg.catalog", "iceberg")
        logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # it has a line for each column
        self._options = options
        self._secrets = resolved(options.credentials)
        self._properties = _properties(options) | _storage(options, self._secrets)
        self._opened: Any = None
        self._metadata: dict[str, LocalDirectory] = {}

    def prepare(self, events: pa.Schema) -> Layout:
        with translated(_meaning):
            table = self._load() or self._create(events)
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
                additions, partial(_number, table), partial(self._fits, table)
            )
            if taken:
                self._append(table, taken)
            self._sync(table.location().removeprefix("file://"))
        return unfit

    def _append(self, table: Any, additions: Sequence[Addition]) -> None:
        """The handle has properties of its own for this commit."""
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
                update(transaction).by_ids([one.snapshot_id for one in gone]).commit()
        if gone:
            iceberg_snapshots.remove_files(table, gone)

    def _located(self, directory: str) -> str:
        """As ``file_store`` reaches it, and as whom."""
        if store_of(directory) != "s3":
            return directory
        query: dict[str, str] = {}
        if self._options.endpoint is not None:
            protocol, _, server = self._options.endpoint.partition("://")
            query |= {"scheme": protocol, "endpoint_override": server.rstrip("/")}
        if self._options.region is not None:
            query["region"] = self._options.region
        place = f"{directory}?{urlencode(query)}" if query else directory
        return located(place, self._options.credentials)

    def _sync(self, place: str) -> None:
        if place.startswith("/"):
            directory = self._metadata.setdefault(place, LocalDirectory(f"{place}/metadata"))
            directory.sync()

    def _load(self) -> Any | None:
        """A handle of what the table is now; None when there is none."""
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
            """Somebody else has made it."""
        return self._load()

    def _fits(self, table: Any, files: Sequence[TableFile]) -> bool:
        """Whether the table still has the columns and the partitions for which they were made."""
        columns = {field.name: _identity(field) for field in _columns(table)}
        names = [part.name for part in _partitions(table)]
        return all(
            list(file.partition) == names
            and all(columns.get(field.name) == _identity(field) for field in file.schema)
            for file in files
        )


def _number(table: Any, series: str) -> int | None:
    found = table.properties.get(NUMBER + series)
    return None if found is None else int(found)


def _columns(table: Any) -> pa.Schema:
    """What Arrow calls the table's columns, with the types that Spark has too."""
    return pa.schema([field.with_type(_plain(field.type)) for field in table.schema().as_arrow()])


def _plain(kind: pa.DataType) -> pa.DataType:
    """Inner fields keep their ids."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(one).with_nullable(True) for one in kind])
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain(field.type))


def _identified(files: pa.Schema, table: pa.Schema) -> pa.Schema:
    """``files`` with the ids of the table's fields: readers find a column by its id, whatever
    another engine calls it."""
    return pa.schema(
        [
            table.field(one.name).with_nullable(one.nullable)
            if table.field(one.name).type == one.type
            else one
            for one in files
        ]
    )


def _identity(field: pa.Field) -> tuple[pa.DataType, bytes | None]:
    return field.type, (field.metadata or {}).get(FIELD_ID)


def _check_unmapped(table: Any, added: Sequence[pa.Field]) -> None:
    """Raises UserError for a new column whose name the table's name mapping has: then files
    without ids have a column of that name, whose values would come back in the new one."""
    mapping = table.metadata.name_mapping()
    names = {name for one in (mapping.root if mapping else ()) for name in one.names}
    for field in added:
        if field.name in names:
            raise UserError(
                f"the column {field.name} was renamed or deleted by another writer, and files "
                "without field ids still have it: rename the column in the flow, or rewrite the "
                "table's files"
            )


def _transaction(table: Any) -> Any:
    """The library's, which copies all metadata each time that it looks at them: here once for each
    change."""
    base: Any = imported("pyiceberg.table", "iceberg").Transaction

    class Transaction(base):  # type: ignore[misc]
        @property
        def table_metadata(self) -> Any:
            changes = len(self._updates)
            if getattr(self, "_known", (-1, None))[0] != changes:
                self._known = changes, super().table_metadata
            return self._known[1]

    return Transaction(table)


def _data_file(metadata: Any, file: TableFile) -> Any:
    """An entry for a manifest, out of the footer that the executor has sent."""
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
    """How a table that is there is partitioned now."""
    found = []
    for field in table.spec().fields:
        name = table.schema().find_column_name(field.source_id)
        transform = str(field.transform)
        if transform not in TRANSFORMS:
            raise UserError(f"flumeng does not partition by {field.transform} of {name}")
        found.append(Partition(field.name, name, cast(Transform, transform)))
    return tuple(found)


def _directory(table: Any) -> str:
    given = table.properties.get("write.data.path")
    return str(given or f"{table.location()}/data")


def _properties(options: Iceberg) -> dict[str, str]:
    """What the library wants to know of the catalog, with the secrets in it."""
    catalog = options.catalog
    found = {"type": catalog.type, "uri": _address(catalog)}
    if catalog.warehouse is not None:
        found["warehouse"] = catalog.warehouse
    for name in ("token", "credential"):
        if (reference := getattr(catalog, name)) is not None:
            found[name] = secrets.resolve(reference)
    return found


def _address(catalog: Catalog) -> str:
    """With the password; and of PostgreSQL with the driver that the library brings along."""
    if catalog.type != "sql":
        return catalog.uri
    url = imported("sqlalchemy", "iceberg").make_url(catalog.uri)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg2").update_query_dict(TIME_OUTS)
    if catalog.password is not None:
        url = url.set(password=secrets.resolve(catalog.password))
    return str(url.render_as_string(hide_password=False))


def _storage(options: Iceberg, known: Mapping[str, Secret]) -> dict[str, str]:
    """How S3 is reached, as the library calls it."""
    found = {"s3.connect-timeout": "5", "s3.request-timeout": "10"}
    found |= {"s3.endpoint": options.endpoint} if options.endpoint is not None else {}
    found |= {"s3.region": options.region} if options.region is not None else {}
    given = options.credentials.given if options.credentials is not None else {}
    return found | {STORAGE[name]: known.get(value, value) for name, value in given.items()}


def _meaning(error: Exception) -> FlumengError:
    """What an error of the library's means."""
    found = imported("pyiceberg.exceptions", "iceberg")
    first = (str(error).strip().splitlines() or [""])[0]
    text = f"{type(error).__name__}: {first}"
    if isinstance(error, OverflowError):
        return UserError(
            "the library cannot commit times and dates beyond the years 1 to 9999: leave them "
            "out with where"
        )
    if isinstance(error, found.CommitFailedException):
        return OvertakenError(text)
    if isinstance(
        error,
        ValueError
        | found.NotInstalledError
        | found.UnauthorizedError
        | found.ForbiddenError
        | found.BadRequestError
        | found.OAuthError,
    ):
        return UserError(text)
    return UnavailableError(text)
