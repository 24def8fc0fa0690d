"""SQL statements of the sink. Names are quoted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from flumeng.connectors.postgres.columns import type_for
from flumeng.connectors.postgres.target import KEY, TableName, quoted

SETTINGS = """
SELECT set_config('statement_timeout', $1, false),
    set_config('idle_in_transaction_session_timeout', $2, false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)
"""
"""Settings of a connection. COMMIT waits for the disk, even if the database's default does not."""
FIND_COLUMNS = """
SELECT a.attname, CASE
    WHEN t.typtype = 'e' THEN 'text'
    WHEN t.typtype = 'd' THEN (SELECT b.typname FROM pg_type b WHERE b.oid = t.typbasetype)
    ELSE t.typname END
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
"""
"""The writable columns of table $1 with their types; no rows without such a table."""


MAY_INSERT = "SELECT has_table_privilege(to_regclass($1), 'INSERT')::text"
TAKE_NAME = "SELECT set_config('application_name', $1, true)"
"""Set the application name of the session for this transaction."""
END_NAMESAKES = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = $1 AND pid <> pg_backend_pid() AND usename = current_user
"""


def hold(table: TableName) -> str:
    """Return a statement that prevents changes of the columns until the transaction ends."""
    return f"LOCK TABLE ONLY {table} IN ROW EXCLUSIVE MODE"


def create(table: TableName, events: pa.Schema, *, keyed: bool) -> str:
    parts = [_definition(field) for field in events]
    if keyed:
        parts.append(f"PRIMARY KEY ({_listed(KEY)})")
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(parts)})"


def add_columns(table: TableName, missing: Sequence[pa.Field]) -> str:
    added = ", ".join(f"ADD COLUMN IF NOT EXISTS {_definition(field)}" for field in missing)
    return f"ALTER TABLE {table} {added}"


def create_batches(table: TableName) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {table.batches} (series text, split integer, "
        "number bigint NOT NULL, written_at timestamptz NOT NULL, refused jsonb, "
        "PRIMARY KEY (series, split))"
    )


def claim(table: TableName) -> str:
    """Return a statement that sets the batch number of series $1 and split $2 to $3, and locks the
    row. If the stored number is not lower, the statement changes nothing and returns no row."""
    return (
        f"INSERT INTO {table.batches} AS known (series, split, number, written_at) "
        "VALUES ($1, $2, $3, now()) ON CONFLICT (series, split) DO UPDATE "
        "SET number = excluded.number, written_at = excluded.written_at, refused = NULL "
        "WHERE known.number < excluded.number RETURNING number"
    )


def note_refused(table: TableName) -> str:
    return f"UPDATE {table.batches} SET refused = $3::jsonb WHERE series = $1 AND split = $2"


def find_refused(table: TableName) -> str:
    return (
        f"SELECT refused::text FROM {table.batches} "
        "WHERE series = $1 AND split = $2 AND number = $3 AND refused IS NOT NULL"
    )


def create_incoming(incoming: str, table: TableName, names: Sequence[str]) -> str:
    """Return a statement that creates a temporary table with columns of ``table``."""
    return (
        f"CREATE TEMPORARY TABLE {quoted(incoming)} ON COMMIT DELETE ROWS AS "
        f"SELECT {_listed(names)} FROM {table} WITH NO DATA"
    )


def upsert(incoming: str, table: TableName, names: Sequence[str]) -> str:
    change = ", ".join(f"{quoted(n)} = excluded.{quoted(n)}" for n in names if n not in KEY)
    return (
        f"INSERT INTO {table} ({_listed(names)}) SELECT {_listed(names)} FROM {quoted(incoming)} "
        f"ON CONFLICT ({_listed(KEY)}) DO " + (f"UPDATE SET {change}" if change else "NOTHING")
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _definition(field: pa.Field) -> str:
    return f"{quoted(field.name)} {type_for(field.type)}"
