"""The filter ``geoip``: columns from a MaxMind database, read once per distinct address of a batch.
Each host has the file, reopened when replaced; while it is unreadable the old version is used."""

from __future__ import annotations

import ipaddress
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import note
from flumeng.events.byte_column import ByteColumn
from flumeng.events.columns import changed
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import ddl
from flumeng.filters.contract import Filter
from flumeng.filters.formats import json_values
from flumeng.filters.options.fields import named
from flumeng.filters.options.geoip import Geoip
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.rate_limited_log import RateLimitedLog

try:
    import maxminddb
except ImportError as missing:
    raise UserError("the filter geoip needs maxminddb: pip install 'flumeng[geoip]'") from missing

log = logging.getLogger(__name__)

Names = tuple[str, ...]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class GeoipFilter(Filter):
    def __init__(self, options: Geoip) -> None:
        self._options = options
        requested = named(None, options.fields)
        self._added = [pa.field(name, ddl.type_of(field.type)) for name, field in requested.items()]
        self._paths = tuple(field.path for field in requested.values())

    def apply(self, batch: LazyBatch) -> LazyBatch:
        schema = pa.schema([*batch.schema, *self._added])
        stage = GeoipStage(
            self._options.column, self._options.database, self._paths, pa.schema(self._added)
        )
        return batch.arrow(stage, schema)


@dataclass(frozen=True)
class GeoipStage:
    column: str
    database: str
    paths: tuple[Names, ...]
    added: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = None
        for batch in batches:
            reader = reader or _databases.reader(self.database)
            yield self._looked_up(batch, reader)

    def _looked_up(self, batch: pa.RecordBatch, reader: maxminddb.Reader) -> pa.RecordBatch:
        addresses = batch[self.column].dictionary_encode()
        parsed = [_address(text) for text in addresses.dictionary.to_pylist()]
        try:
            records = [_record(reader, address) for address in parsed]
        except maxminddb.InvalidDatabaseError as error:
            raise UnavailableError(
                f"geoip: the database {self.database} is damaged: {error}"
            ) from error
        added = {
            field.name: _values(records, path, field.type).take(addresses.indices)
            for field, path in zip(self.added, self.paths, strict=True)
        }
        wrong = pa.array([address is None for address in parsed], pa.bool_())
        reason = pa.scalar(f"geoip: {self.column} is no address", pa.string())
        reasons = pc.if_else(wrong.take(addresses.indices), reason, None)
        return changed(batch, {"attrs": note(batch["attrs"], reasons), **added})


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    return (address.version == 6 and address.ipv4_mapped) or address


def _record(reader: maxminddb.Reader, address: Address | None) -> Any:
    if address is None or address.version > reader.metadata().ip_version:
        return None
    return reader.get(address)


def _values(records: list[Any], path: Names, kind: pa.DataType) -> pa.Array:
    texts = [json.dumps(_inside(record, path), default=str) for record in records]
    raws = ByteColumn(pa.array(texts, pa.string()).cast(pa.binary()))
    values, _ = json_values.column(raws, kind)
    return values


def _inside(record: Any, path: Names) -> Any:
    for name in path:
        if isinstance(record, list) and name.isdigit():
            record = record[int(name)] if int(name) < len(record) else None
        else:
            record = record.get(name) if isinstance(record, dict) else None
    return record


class _Databases:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[tuple[int, ...], maxminddb.Reader]] = {}
        self._read_failures = RateLimitedLog(log)

    def reader(self, path: str) -> maxminddb.Reader:
        """Return a reader of the file at ``path``, or of its last readable version. Raises
        UnavailableError when there is none."""
        with self._lock:
            before = self._open.get(path)
            try:
                state = Path(path).stat()
                version = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
                if before is None or before[0] != version:
                    self._open[path] = version, maxminddb.open_database(path)
            except (OSError, ValueError, maxminddb.InvalidDatabaseError) as error:
                if before is None:
                    raise UnavailableError(f"geoip: cannot read {path}: {error}") from error
                text = "geoip: cannot read %s, still using its old version: %s"
                self._read_failures.warning(text, path, error)
            return self._open[path][1]


_databases = _Databases()
