"""Bodies through a reader of a format, as columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from flumeng.filters import formats
from flumeng.filters.options.parse import Parse

RECEIVED = datetime(2026, 11, 9, 12, tzinfo=UTC)
READERS = {
    "syslog": Parse("syslog"),
    "json": Parse("json", into="all"),
    "json schema": Parse(
        "json", schema="a STRING, n DOUBLE, i BIGINT, t TIMESTAMP, d DECIMAL(10,2), l ARRAY<INT>"
    ),
    "key_value": Parse("key_value", into="all"),
    "key_value separated": Parse("key_value", into="all", pair_separator=",", value_separator=":"),
    "logfmt": Parse("logfmt", schema="a STRING, n DOUBLE, i BIGINT, t TIMESTAMP"),
    "csv": Parse("csv", schema="a STRING, n DOUBLE, i BIGINT, t TIMESTAMP"),
    "access_log": Parse("access_log"),
    "cri": Parse("cri"),
    "docker": Parse("docker"),
    "cef": Parse("cef", into="all"),
    "leef": Parse("leef", into="all"),
    "grok": Parse("grok", pattern="%{TIMESTAMP_ISO8601:t} %{GREEDYDATA:a} %{NUMBER:n:float}"),
    "regex": Parse("regex", pattern="^(?P<a>(?:a+)+)$"),
}
"""Each format with all its options."""


def read_bodies(options: Parse, *bodies: bytes) -> list[Any]:
    """For each body its columns by name.

    ``ts`` and ``host`` are included where the body has them, and ``parse_error`` where a value is
    wrong; an unreadable body gives only the reason. Checks the types of columns.
    """
    reader = formats.reader(options)
    received = pa.array([RECEIVED] * len(bodies), pa.timestamp("us", "UTC"))
    found = reader.read(pa.array(bodies, pa.binary()), received)
    for column, field in zip(found.columns, reader.columns, strict=True):
        assert column.type == field.type
        assert len(column) == len(bodies)
        column.validate(full=True)
    rows = []
    for place in range(len(bodies)):
        row = {
            name: column[place].as_py()
            for name, column in zip(reader.columns.names, found.columns, strict=True)
        }
        reason = found.reasons[place].as_py()
        for name, own in (("ts", found.ts), ("host", found.host)):
            if own is not None and own[place].is_valid and own[place].as_py() != RECEIVED:
                row[name] = own[place].as_py()
        if reason is not None:
            row = reason if _nothing(row) else {**row, "parse_error": reason}
        rows.append(row)
    return rows


def _nothing(row: dict[str, Any]) -> bool:
    return all(value is None for value in row.values())
