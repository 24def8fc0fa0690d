"""Any body is read or has a reason, in time that grows with its bytes."""

from __future__ import annotations

import time

import pytest

from flumeng.filters.options.parse import Parse
from tests.testkit.formats import READERS, read_bodies

MANY = 100_000
KEYS = 20_000
HEADS = (
    b"",
    b'a:"x"y',
    b"CEF:0|v|p|1|id|name|5|a=",
    b"LEEF:2.0|v|p|1|id|^|a=",
    b'<34>1 2026-11-09T12:00:00Z h a p m [x a="',
    b"2026-11-09T12:00:00Z stdout F ",
    b'{"log":"',
    b'192.0.2.1 - - [09/Nov/2026:12:00:00 +0000] "',
)
ENDLESS = (
    b"a",
    b"\0",
    b"\xff",
    b'"',
    b"\\",
    b"=",
    b" ",
    b",",
    b"|",
    b"[",
    b'{"a":',
    b'a="',
    b'\\"',
)
NUMBERS = (b"1e999999", b"-1e-999999", b"NaN", b"Infinity", b"9" * 400, b"9223372036854775808")
TIMES = (
    b"0000-01-01T00:00:00Z", b"99999-01-01T00:00:00Z", b"2026-02-30T00:00:00Z",
    b"2026-01-01T23:59:60Z", b"0001-01-01T00:00:00+14:00", b"292277026597-01-01T00:00:00Z",
)  # fmt: skip


def bodies() -> list[bytes]:
    repeated = [
        head + part * (MANY // len(part)) + tail
        for head in HEADS
        for part in ENDLESS
        for tail in (b"", b"z")
    ]
    nested = [b"[" * MANY + b"]" * MANY, b'{"l":' + b"[" * MANY + b"]" * MANY + b"}"]
    keys = [
        b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(KEYS)) + b"}",
        *(
            head + between.join(b"k%d%s%d" % (n, equals, n) for n in range(KEYS))
            for head, between, equals in (
                (b"", b" ", b"="),
                (b"", b",", b":"),
                (HEADS[2], b" ", b"="),
                (HEADS[3], b"^", b"="),
            )
        ),
    ]
    values = [
        made
        for value in (*NUMBERS, *TIMES)
        for made in (
            b'{"a":"%s","n":%s,"i":%s,"t":"%s","d":%s}' % ((value,) * 5),
            b"a=%s n=%s i=%s t=%s" % ((value,) * 4),
            b"%s,%s,%s,%s" % ((value,) * 4),
            b"<34>1 %s h a p m - x" % value,
            b"%s stdout F x" % value,
            b'{"log":"x","stream":"stdout","time":"%s"}' % value,
        )
    ]
    return [*repeated, *nested, *keys, *values]


@pytest.mark.long
@pytest.mark.parametrize("options", READERS.values(), ids=READERS)
def test_every_body_is_read_or_has_a_reason_in_time(options: Parse) -> None:
    hostile = bodies()
    began = time.process_time()
    assert len(read_bodies(options, *hostile)) == len(hostile)
    assert time.process_time() - began < 100.0, "what grows with the square takes hours"
