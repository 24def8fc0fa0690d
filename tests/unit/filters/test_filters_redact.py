"""Private data is removed from texts, and all else stays, byte for byte."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config import SpecError, check_flow
from flumeng.filters.options.redact import Redact
from flumeng.filters.personal_data import FINDERS, Finder
from flumeng.filters.redact import RedactFilter, RedactStage, redacted
from flumeng.platform.errors import UserError
from flumeng.platform.scrubbing import Secret

ATTRS = pa.map_(pa.string(), pa.string())
KEY = Secret("0123456789abcdef-key")


def masked(*texts: str | None, kinds: str, mode: str = "mask") -> list[str | None]:
    finders = tuple(FINDERS[kind] for kind in kinds.split())
    found: list[list[str | None]] = []
    for kind in (pa.string(), pa.binary()):
        encoded = [text if text is None or kind == pa.string() else text.encode() for text in texts]
        batch = pa.RecordBatch.from_pydict({"body": pa.array(encoded, kind)})
        (after,) = RedactStage(("body",), finders, mode, KEY)(iter([batch]))
        after.validate(full=True)
        assert after.schema == batch.schema
        found.append(after["body"].cast(pa.string()).to_pylist())
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    ("kinds", "text", "expected"),
    [
        ("email", "from bob.smith+x@mail.example.com, to", "from ***, to"),
        ("email", "user=jörg@exämple.de;", "user=***;"),
        ("email", "<a@b.c><d@e.f>", "<***><***>"),
        ("email", "a@b and @c.d", "a@b and @c.d"),
        ("ipv4", "ip_10.0.0.1:443 and 10.0.0.2.443", "ip_***:443 and ***.443"),
        ("ipv4", "256.1.1 1.2.3 v1.2.3.400 999.10.0.0.1", "256.1.1 1.2.3 v1.2.3.400 999.***"),
        ("ipv6", "[2001:db8::1]:443 fe80::1%eth0/64 ::1 .", "[***]:443 ***%eth0/64 *** ."),
        ("ipv6", "addr:fe80::1: ok, 2001:db8::1.443", "addr:***: ok, ***.443"),
        ("ipv6", "::ffff:10.0.0.1 1:2:3:4:5:6:7:8", "*** ***"),
        ("ipv6", "at 09:15:07 aa:bb:cc:dd:ee:ff Foo::Bar std::d ::", None),
        ("card", "pan_4111111111111111, 4111-1111-1111-1111 x", "pan_***, *** x"),
        ("card", "no 1234 4012 8888 8888 1881 123", "no 1234 *** 123"),
        ("card", "amex 3782 822463 10005.", "amex ***."),
        ("card", "4111111111111112 1795252507123456 41111111111111111111 0000000000000000", None),
        ("email card", "a@b.cc paid 4111111111111111", "*** paid ***"),
        ("email ipv4 ipv6 card", "nothing \x02 \x02\x03 here", None),
        ("email", "\x02\x03a@b.cc\x03\x02", "\x02\x03***\x03\x02"),
        ("ipv4", "\x0210.0.0.1\x02\x0310.0.0.1\x03", "\x02***\x02\x03***\x03"),
    ],
)
def test_each_kind_of_private_data_is_redacted(kinds: str, text: str, expected: str | None) -> None:
    assert masked(text, None, "x", kinds=kinds) == [expected or text, None, "x"]


def luhn(digits: str) -> str:
    """The digits with their Luhn check digit: each doubled digit counts by its digit sum."""
    total = sum(sum(map(int, str(int(d) * (2 - n % 2)))) for n, d in enumerate(reversed(digits)))
    return digits + str(-total % 10)


CARDS = st.from_regex(r"[2-6][0-9]{14}", fullmatch=True).map(luhn)
ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
WORDS = st.from_regex(r"[g-z ]{0,8}", fullmatch=True)


@pytest.mark.slow
@given(st.lists(st.tuples(WORDS, st.one_of(CARDS, ADDRESSES)), max_size=9))
def test_all_matches_are_redacted_and_nothing_else(parts: list[tuple[str, str]]) -> None:
    parts = [(word, text) for word, text in parts if text != "::"]
    rows = [f"{word} {text} {text}, {word}" for word, text in parts]
    expected = [f"{word} *** ***, {word}" for word, _ in parts]
    assert masked(*rows, kinds="ipv4 ipv6 card") == expected


@given(
    st.lists(st.none() | st.binary(max_size=20), max_size=9),
    st.sampled_from([rb"[0-9]+", rb"\xc3", rb"a|ab", rb"\x02"]),
    st.integers(0, 2),
)
def test_redact_pattern_replaces_as_re_does(
    rows: list[bytes | None], pattern: bytes, skip: int
) -> None:
    finder = Finder(pattern.decode("latin-1").replace("\xc3", r"\xc3"))
    found = redacted(
        pa.array(rows, pa.binary()).slice(skip), (finder,), lambda text: b"<%d>" % len(text)
    )
    found.validate(full=True)
    assert found.to_pylist() == [
        row if row is None else re.sub(pattern, lambda m: b"<%d>" % len(m[0]), row)
        for row in rows[skip:]
    ]


def digest(text: bytes) -> str:
    return hmac.new(KEY.encode(), text, hashlib.sha256).hexdigest()[:32]


def test_hash_of_a_text_is_the_same_everywhere_and_is_not_redacted_again() -> None:
    one, two = (digest(text) for text in (b"10.0.0.1", b"a@b.cc"))
    assert masked("x 10.0.0.1", "10.0.0.1 a@b.cc", kinds="ipv4 email card", mode="hash") == [
        f"x {one}", f"{one} {two}",
    ]  # fmt: skip
    everything = (Finder("10[.]0[.]0[.]1"), Finder("[0-9a-f]+"))
    found = redacted(pa.array(["10.0.0.1 ab"]), everything, lambda text: text.hex().encode())
    assert found.to_pylist() == [f"{b'10.0.0.1'.hex()} {b'ab'.hex()}"]


def test_redact_replaces_whole_columns_and_attributes() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "user": pa.array(["bob", None, "bob"]),
            "body": pa.array([b"\xff", b"", None]),
            "attrs": pa.array([[("peer", "10.0.0.1:5"), ("a", "b")], [], [("peer", "x")]], ATTRS),
        }
    )
    (found,) = RedactStage(("user", "body"), (), "hash", KEY)(iter([batch]))
    assert found["user"].to_pylist() == [digest(b"bob"), None, digest(b"bob")]
    assert found["body"].to_pylist() == [digest(b"\xff").encode(), digest(b"").encode(), None]
    (found,) = RedactStage(("body", "attrs.peer"), (), "remove")(iter([batch]))
    assert found["body"].null_count == 3
    assert found["attrs"].to_pylist() == [[("a", "b")], [], []]
    (found,) = RedactStage(("attrs.peer",), (FINDERS["ipv4"],), "mask")(iter([batch]))
    assert [dict(row) for row in found["attrs"].to_pylist()] == [
        {"peer": "***:5", "a": "b"}, {}, {"peer": "x"},
    ]  # fmt: skip


def test_hostile_text_does_not_prolong_the_search_for_a_free_mark() -> None:
    """A sender may know the first mark that is tried, and begins of others."""
    hostile = b"a@b.cc \x02" + b"\x03" * 1_000_000
    found = redacted(pa.array([hostile]), (FINDERS["email"],), lambda _: b"x")
    assert found.to_pylist() == [b"x" + hostile[6:]]


def test_the_key_comes_from_a_secret_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUMENG_SECRETS", str(tmp_path))
    options = Redact(("body",), mode="hash", secret="${secret:names}")
    with pytest.raises(UserError, match="there is no secret names"):
        RedactFilter(options)
    monkeypatch.setenv("FLUMENG_SECRET_NAMES", "short")
    with pytest.raises(UserError, match="has 5 characters, and needs at least 16"):
        RedactFilter(options)
    monkeypatch.setenv("FLUMENG_SECRET_NAMES", KEY)
    RedactFilter(options)
    assert KEY not in repr(RedactStage(("body",), (), "hash", KEY))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{columns: [body, attrs.peer, host], kinds: [email], patterns: ['x+']}", ""),
        ("{columns: [host], mode: hash, secret: '${secret:names}'}", ""),
        ("{columns: [host], mode: hash}", 'missing "secret"'),
        ("{columns: [host], mode: hash, secret: abc}", "not the secret itself"),
        ("{columns: [host], secret: '${secret:names}'}", "only mode hash takes this option"),
        ("{columns: [hst]}", "redact[0]: there is no column hst"),
        ("{columns: [host, seq]}", "redact[1]: the column seq is a integer: expected a text"),
        ("{columns: [host], kinds: [phone]}", "expected one of email"),
        ("{columns: [host], patterns: ['x*']}", "an empty text does not match"),
        ("{columns: [host], patterns: ['(?=x)']}", "no look-ahead in RE2"),
    ],
)
def test_invalid_options_are_reported(options: str, message: str) -> None:
    text = f"flow: f\nsources: [tail: {{paths: [/a]}}]\nfilters: [redact: {options}]\nsinks: [noop]"
    try:
        check_flow(text)
    except SpecError as error:
        assert message and message in str(error)
    else:
        assert not message
