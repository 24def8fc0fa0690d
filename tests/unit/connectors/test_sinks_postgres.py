"""Columns as PostgreSQL's COPY takes them, statements, and the options of the sink."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from flumeng.connectors.postgres import options as spec
from flumeng.connectors.postgres.columns import UnfitError, encode, type_for
from flumeng.connectors.postgres.options import Sql
from flumeng.connectors.postgres.target import Server, Target, quoted
from flumeng.events.identity import with_identity
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import UserError
from flumeng.platform.scrubbing import Secret

MAP = pa.map_(pa.string(), pa.string())


def encoded(values: list[Any], kind: pa.DataType, target: str) -> list[Any]:
    found: list[Any] = encode("c", pa.array(values, kind), target).to_pylist()
    return found


@pytest.mark.parametrize(
    ("values", "kind", "target", "expected"),
    [
        ([b"a\xff\0b", None, b""], pa.binary(), "text", ["a\ufffd\ufffdb", None, ""]),
        ([b"a\xff\0b", None], pa.binary(), "bytea", [b"a\xff\0b", None]),
        (["\0", "x"], pa.string(), "varchar", ["\ufffd", "x"]),
        (["x"], pa.string(), "bytea", [b"x"]),
        (["17", None], pa.string(), "int4", [17, None]),
        ([b"-1.5"], pa.binary(), "numeric", [Decimal("-1.500000000")]),
        ([2**63], pa.uint64(), "numeric", [Decimal(2**63)]),
        ([Decimal("1.20")], pa.decimal128(5, 2), "numeric", [Decimal("1.20")]),
        ([7], pa.int64(), "text", ["7"]),
        ([[("k", 'q"\0')], [], None], MAP, "jsonb", [b'\1{"k":"q\\"\\ufffd"}', b"\1{}", None]),
        ([[("k", "\\u0000")]], MAP, "json", [b'{"k":"\\\\u0000"}']),
        ([[1, None]], pa.list_(pa.int32()), "text", ["[1,null]"]),
        ([b'{"a": 1}'], pa.binary(), "jsonb", [b'\1{"a": 1}']),
        ([date(1, 1, 1)], pa.date32(), "timestamptz", [datetime(1, 1, 1, tzinfo=UTC)]),
        (["2026-01-01T00:00:00Z"], pa.string(), "timestamptz", [datetime(2026, 1, 1, tzinfo=UTC)]),
    ],
)
def test_column_is_encoded_for_its_target_type(
    values: list[Any], kind: pa.DataType, target: str, expected: list[Any]
) -> None:
    assert encoded(values, kind, target) == expected


@pytest.mark.parametrize(
    ("value", "kind", "target"),
    [
        (2**40, pa.int64(), "int4"),
        ("many", pa.string(), "int8"),
        (-(2**63) + 1, pa.timestamp("us", "UTC"), "timestamptz"),
        ("yesterday", pa.string(), "timestamptz"),
    ],
)
def test_unfit_value_and_unfit_type_have_distinct_errors(
    value: Any, kind: pa.DataType, target: str
) -> None:
    with pytest.raises(UnfitError, match="column c: "):
        encoded([value], kind, target)
    with pytest.raises(UserError, match="the column c is map<string, string>, and bool"):
        encoded([[("k", "v")]], MAP, "bool")


def test_each_column_type_has_a_type_in_a_new_table() -> None:
    kinds = {
        "boolean": pa.bool_(),
        "smallint": pa.int8(),
        "integer": pa.int32(),
        "bigint": pa.int64(),
        "real": pa.float32(),
        "double precision": pa.float64(),
        "numeric(12, 3)": pa.decimal128(12, 3),
        "text": pa.binary(),
        "date": pa.date32(),
        "timestamptz": pa.timestamp("us", "UTC"),
        "timestamp": pa.timestamp("us"),
        "interval": pa.duration("us"),
        "jsonb": pa.struct({"a": pa.int32()}),
    }
    assert {name: type_for(kind) for name, kind in kinds.items()} == {name: name for name in kinds}
    assert type_for(pa.null()) == "text"


def server(password: str = "") -> Server:
    return Server("db", 5432, "logs", "it's", Secret(password), "verify-full", "system", 30.0)


def test_no_server_error_shows_the_password_and_libpq_gets_it_whole() -> None:
    secret = "o'h \\ no"
    found = server(secret)
    assert "password='o\\'h \\\\ no'" in found.parameters
    assert "user='it\\'s'" in found.parameters
    assert secret not in f"{found} {found!r}"
    assert pickle.loads(pickle.dumps(found)) == found


def target(schema: pa.Schema, **options: Any) -> Target:
    given = {"url": "postgresql://db/logs", "table": "events", "username": "flumeng"}
    return Target.of(server(), Sql(**(given | options)), schema)


def test_upserts_have_the_identity_as_key() -> None:
    events = with_identity(READ_SCHEMA)
    assert target(events).schema == READ_SCHEMA
    dropped = pa.schema([field for field in events if field.name not in ("journal", "seq")])
    upserts = target(dropped, mode="upsert")
    assert upserts.schema.names[-2:] == ["journal", "seq"]
    assert [upserts.source(name) for name in ("seq", "host")] == ["__seq", "host"]


@pytest.mark.parametrize("names", [[], ["ä" * 32], ["a", "a"], [""]])
def test_columns_that_a_table_cannot_have_are_refused(names: list[str]) -> None:
    with pytest.raises(UserError, match="sql: "):
        target(pa.schema([(name, pa.string()) for name in names]))


def test_sql_names_are_quoted() -> None:
    assert quoted('a"; drop table x; --') == '"a""; drop table x; --"'


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@db/logs",
        "postgresql://db",
        "postgresql://db/logs/x",
        "postgresql://db/logs?sslmode=disable",
        "mysql://db/logs",
        "postgresql://db:0/logs",
        "postgresql:///logs",
    ],
)
def test_urls_with_too_much_or_too_little_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        spec.check_url(url)


def test_needed_permissions_are_the_database_and_the_authority_file() -> None:
    options = Sql("postgresql://DB.example/logs", "t", "u", sslrootcert="/etc/ca.pem")
    assert list(options.needs()) == [
        ("output", "postgresql://db.example:5432/logs"),
        ("path", "/etc/ca.pem"),
    ]
    assert options.exactly_once == "by batch"
