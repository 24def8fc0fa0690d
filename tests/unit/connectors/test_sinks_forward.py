"""Messages in a stream are separated again as they were, and syslog messages read back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from flumeng.config.client_tls import ClientTls
from flumeng.connectors.forward import syslog_text
from flumeng.connectors.forward.options import ForwardTcp
from flumeng.connectors.forward.sink import Forward, framed
from flumeng.events.schema import READ_SCHEMA
from flumeng.filters.formats.syslog import SyslogReader
from flumeng.filters.parse import ROWS_AT_A_TIME, ParseStage
from flumeng.filters.refused_times import Bounded
from flumeng.platform.errors import UserError
from tests.unit.connectors.authority import Authority

MESSAGES = [b"one", b"", None, b"a\nb\r\n", "grün".encode(), b"\xff\x00", b"5 six"]


def binary(*values: bytes | None) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def test_messages_are_framed_as_receivers_expect() -> None:
    messages = binary(*MESSAGES)
    assert bytes(framed(messages, "newline")) == (
        b"one\n\n\na#012b\r#012\ngr\xc3\xbcn\n\xff\x00\n5 six\n"
    )
    assert bytes(framed(messages, "octet-counted")) == (
        b"3 one0 0 5 a\nb\r\n5 gr\xc3\xbcn2 \xff\x005 5 six"
    )
    assert bytes(framed(messages, "length-prefixed")) == b"".join(
        len(message or b"").to_bytes(4, "big") + (message or b"") for message in MESSAGES
    )


def test_slice_of_an_array_is_framed_alone() -> None:
    assert bytes(framed(binary(b"a", b"b", b"c").slice(1, 1), "newline")) == b"b\n"
    assert bytes(framed(binary(), "octet-counted")) == b""
    assert bytes(framed(binary(None), "newline")) == b"\n"


def rendered(**columns: Any) -> list[bytes]:
    values: list[bytes] = syslog_text.rows(pa.RecordBatch.from_pydict(columns)).to_pylist()
    return values


def test_message_is_made_of_the_present_columns() -> None:
    time = pa.array([datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    assert rendered(
        facility=[4],
        severity=[2],
        ts=time,
        host=["web 1"],
        app=["nginx" * 20],
        procid=["42"],
        msgid=[None],
        structured=['[x@1 a="b"]'],
        message=["grün\nline"],
        body=[b"not this"],
    ) == [
        b"<34>1 2026-03-01T12:00:00.000005Z web?1 "
        + b"nginx" * 9
        + 'ngi 42 - [x@1 a="b"] grün\nline'.encode()
    ]
    assert rendered(body=[b"raw \xff", None]) == [
        b"<13>1 - - - - - - raw \xff",
        b"<13>1 - - - - - - ",
    ]


@pytest.mark.parametrize(
    ("facility", "severity", "priority"), [(24, 0, b"<8>"), (-1, 8, b"<13>"), (None, 7, b"<15>")]
)
def test_invalid_priority_becomes_user_notice(
    facility: int | None, severity: int, priority: bytes
) -> None:
    (found,) = rendered(
        facility=pa.array([facility], pa.int32()), severity=[severity], message=["x"]
    )
    assert found.startswith(priority + b"1 ")


def test_parsed_message_is_read_back_the_same() -> None:
    lines = [
        b'<34>1 2026-11-09T10:00:15.003Z web1 nginx 7 ID47 [origin@32473 ip="192.0.2.1"] GET /',
        b"<165>1 2026-11-09T10:00:15.003Z - - - - - ",
    ]
    received = datetime(2026, 11, 9, 12, tzinfo=UTC)
    events = pa.RecordBatch.from_pylist(
        [
            {"body": line, "ts": received, "host": "peer", "attrs": [], "journal": "j", "seq": 1}
            for line in lines
        ],
        READ_SCHEMA,
    )
    stage = Bounded(ParseStage(SyslogReader()), 7 * 86_400.0, ROWS_AT_A_TIME)
    (first,) = stage(iter([events]))
    again = events.set_column(0, "body", syslog_text.rows(first))
    (second,) = stage(iter([again]))
    assert second.drop_columns(["body"]).to_pylist() == first.drop_columns(["body"]).to_pylist()


def test_columns_that_make_no_message_are_reported() -> None:
    for field, told in (
        (pa.field("x", pa.string()), "needs the column message or body"),
        (pa.field("severity", pa.string()), "severity is not an integer"),
        (pa.field("app", pa.list_(pa.string())), "in the column app, not list"),
    ):
        schema = pa.schema([field, *([] if field.name == "x" else [pa.field("body", pa.binary())])])
        with pytest.raises(UserError, match=told):
            syslog_text.check(schema)


@pytest.mark.parametrize("locked", [False, True])
def test_unusable_certificate_of_a_client_is_named_instead_of_the_authority(
    tmp_path: Path, locked: bool
) -> None:
    """And no password of a key is asked for."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("client")
    if locked:
        loaded = load_pem_private_key(key.read_bytes(), None)
        lock = BestAvailableEncryption(b"secret")
        key.write_bytes(loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    else:
        key.unlink()
    tls = ClientTls(ca=str(authority.ca), certificate=str(certificate), key=str(key))
    options = ForwardTcp(targets=("127.0.0.1:1",), tls=tls)
    events = pa.RecordBatch.from_pydict({"body": [b"x"]})
    with pytest.raises(UserError, match=f"^tls: {certificate} and {key}: "):
        list(Forward(options)(iter([events])))
    with pytest.raises(UserError, match=f"^tls: {certificate} and {key}: "):
        tls.context()
