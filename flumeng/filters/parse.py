"""Adds columns for what the body says: as syslog, as JSON, or by a pattern.

An event that does not parse is never dropped and never an error: it keeps body, ts and host, its
new columns are null, and ``attrs.parse_error`` says why. The body itself is never changed; text
taken from it has U+FFFD where it is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, the name that all of Spark's users know
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from flumeng.errors import UserError
from flumeng.filters import syslog
from flumeng.filters.byte_column import text
from flumeng.filters.ddl import read as read_ddl
from flumeng.filters.json_check import VALID, JsonCheck
from flumeng.filters.lazy_batch import LazyBatch, Stage
from flumeng.filters.local_times import to_utc
from flumeng.filters.reasons import PARSE_ERROR, note
from flumeng.filters.receipt_bound import REFUSED, Bounded, is_far
from flumeng.journal.schema import EVENT_SCHEMA
from flumeng.spec.filters import Parse

ROWS_AT_A_TIME = 8192
"""Small slices, since the work on one then stays in the processor's cache."""
MALFORMED = "_flumeng_malformed"
PARSED = "_flumeng_parsed"
REFUSED_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"


class ParseFilter:
    tables = ()
    identified = False

    def __init__(self, options: Parse) -> None:
        self._options = options

    def apply(self, batch: LazyBatch) -> LazyBatch:
        _require_event(batch.schema)
        if self._options.format == "syslog":
            bounded = Bounded(
                _syslog_stage(self._options.timezone),
                self._options.ts_within_seconds,
                ROWS_AT_A_TIME,
            )
            return _add(batch, bounded, list(syslog.COLUMNS))
        if self._options.format == "regex":
            assert self._options.pattern is not None
            names = _groups(self._options.pattern)
            columns = [pa.field(name, pa.string()) for name in names]
            return _add(batch, RegexStage(self._options.pattern), columns)
        assert self._options.schema is not None
        return _parse_json(batch, self._options.schema, self._options.ts_within_seconds)


@dataclass(frozen=True)
class SyslogStage:
    timezone: str | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self._parse(batch)

    def _parse(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        parsed = syslog.parse(batch["body"], batch["ts"], self.timezone)
        changed = {
            "ts": parsed.ts,
            "host": pc.coalesce(parsed.host, batch["host"]),
            "attrs": note(batch["attrs"], parsed.reasons),
        }
        return _with(batch, changed, dict(zip(_names(syslog.COLUMNS), parsed.columns, strict=True)))


@dataclass(frozen=True)
class RegexStage:
    pattern: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self._parse(batch)

    def _parse(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = pc.extract_regex(text(batch["body"]), self.pattern)
        matched = found.is_valid()
        reasons = pc.if_else(matched, pa.scalar(None, pa.string()), "regex: no match")
        added = {
            field.name: pc.if_else(matched, pc.struct_field(found, field.name), None)
            for field in found.type
        }
        return _with(batch, {"attrs": note(batch["attrs"], reasons)}, added)


def _syslog_stage(timezone: str | None) -> SyslogStage:
    if timezone:
        try:
            to_utc(np.zeros(1, np.int64), timezone, np.zeros(1, np.int64))
        except pa.ArrowInvalid as error:
            raise UserError(f"parse: this host has no rules of the time zone {timezone}") from error
    return SyslogStage(timezone)


def _parse_json(batch: LazyBatch, ddl: str, ts_within_seconds: float) -> LazyBatch:
    """Spark's own JSON reader, permissive, behind a check that there is nothing but JSON.

    ``ts`` and ``host`` of the schema set the event's.
    """
    wanted = read_ddl(ddl)
    own = {field.name for field in wanted if field.name in ("ts", "host")}
    for name, kind in (("ts", TimestampType()), ("host", StringType())):
        if name in own and wanted[name].dataType != kind:
            raise UserError(f"parse: {name} sets the event's own: it must be {kind.simpleString()}")
    _require_new(batch.schema, [field.name for field in wanted if field.name not in own])
    schema = StructType([*wanted.fields, StructField(MALFORMED, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
    before = batch.schema.names

    def transform(rows: DataFrame) -> DataFrame:
        parsed = F.from_json(F.col("body").cast("string"), schema, options)
        rows = rows.withColumn(PARSED, parsed)
        good = F.col(VALID) & F.col(PARSED).isNotNull() & F.col(PARSED)[MALFORMED].isNull()
        why = F.when(F.col(VALID), "json: not of the schema").otherwise("json: malformed")
        reason = F.create_map(F.lit(PARSE_ERROR), why)
        changed = {
            "attrs": F.when(good, F.col("attrs")).otherwise(F.map_concat(F.col("attrs"), reason)),
            **{name: F.coalesce(F.when(good, F.col(PARSED)[name]), F.col(name)) for name in own},
        }
        if "ts" in own:
            said = F.when(good, F.col(PARSED)["ts"])
            far = is_far(said, F.col("ts"), ts_within_seconds)
            refused = F.create_map(F.lit(REFUSED), F.date_format(said, REFUSED_FORMAT))
            changed["ts"] = F.when(far, F.col("ts")).otherwise(changed["ts"])
            changed["attrs"] = F.when(far, F.map_concat(F.col("attrs"), refused)).otherwise(
                changed["attrs"]
            )
        kept = [changed.get(name, F.col(name)).alias(name) for name in before]
        new = [
            F.when(good, F.col(PARSED)[field.name]).alias(field.name)
            for field in wanted
            if field.name not in own
        ]
        return rows.select(*kept, *new)

    checked = batch.arrow(JsonCheck(), batch.schema.append(pa.field(VALID, pa.bool_())))
    return checked.sql(transform)


def _groups(pattern: str) -> list[str]:
    """The names of the pattern's groups, as RE2 sees them."""
    try:
        found = pc.extract_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        raise UserError(f"parse: {error}") from error
    return [field.name for field in found.type]


def _add(batch: LazyBatch, stage: Stage, columns: list[pa.Field]) -> LazyBatch:
    _require_new(batch.schema, _names(columns))
    return batch.arrow(stage, pa.schema([*batch.schema, *columns]))


def _require_event(schema: pa.Schema) -> None:
    for field in EVENT_SCHEMA:
        if field.name not in schema.names or schema.field(field.name).type != field.type:
            raise UserError(
                f"parse: needs the column {field.name} as it was received; put select behind parse"
            )


def _require_new(schema: pa.Schema, names: list[str]) -> None:
    for name in names:
        if name in schema.names:
            raise UserError(f"parse: there is a column {name} already")


def _names(fields: list[pa.Field] | tuple[pa.Field, ...]) -> list[str]:
    return [field.name for field in fields]


def _with(
    batch: pa.RecordBatch, changed: dict[str, pa.Array], added: dict[str, pa.Array]
) -> pa.RecordBatch:
    names = [*batch.schema.names, *added]
    columns = [
        *(changed.get(name, batch[name]) for name in batch.schema.names),
        *added.values(),
    ]
    return pa.RecordBatch.from_arrays(columns, names)
