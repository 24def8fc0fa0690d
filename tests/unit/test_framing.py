"""Messages come out of a TCP stream whole, however the network cut it into pieces."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.ingest.framing import Cutter, Framer, Framing, Messages, cutter

MAX = 64
OVERLONG = b"x" * (MAX + 3)
FRAMINGS: tuple[Framing, ...] = ("newline", "octet-counted", "length-prefixed")


def single(found: Iterable[Messages]) -> list[bytes]:
    """The messages one by one, with the trailers that the commit thread takes off."""
    messages: list[bytes] = []
    for data, bounds, _ in found:
        if bounds is None:
            assert data.endswith(b"\n")
            messages += data[:-1].split(b"\n")
        else:
            messages += [data[start:end] for start, end in zip(*bounds, strict=True)]
    return messages


def feed(framer: Cutter, pieces: Iterable[bytes]) -> list[bytes]:
    """Through one buffer that is overwritten each time, as in the worker."""
    buffer = bytearray(1 << 16)
    messages = []
    for piece in pieces:
        buffer[: len(piece)] = piece
        found = framer.feed(buffer, len(piece))
        buffer[: len(piece)] = b"?" * len(piece)
        messages += single(found)
    return messages


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    return [data[a:b] for a, b in pairwise(places)]


def framed(messages: list[bytes], framing: Framing) -> bytes:
    if framing == "newline":
        return b"".join(message + b"\n" for message in messages)
    if framing == "length-prefixed":
        return b"".join(len(message).to_bytes(4, "big") + message for message in messages)
    return b"".join(b"%d %b" % (len(message), message) for message in messages)


@given(
    st.lists(st.binary(max_size=MAX), max_size=20),
    st.lists(st.integers(0, 10**6), max_size=30),
    st.sampled_from(FRAMINGS),
)
def test_any_cut_of_the_stream_gives_the_same_messages(
    messages: list[bytes], cuts: list[int], framing: Framing
) -> None:
    """No byte of a message is lost or gets into another one."""
    if framing == "newline":
        messages = [message.replace(b"\n", b"") for message in messages]
    framer = cutter(framing, MAX)
    assert feed(framer, pieces_of(framed(messages, framing), cuts)) == messages
    assert framer.end() == []
    assert not framer.malformed


@given(st.lists(st.binary(max_size=3 * MAX), max_size=9), st.lists(st.integers(0, 10**6)))
def test_an_overlong_message_is_passed_on_cut_and_the_next_one_is_whole(
    messages: list[bytes], cuts: list[int]
) -> None:
    """Its excess is what tells the commit thread to cut and count it, also when it came at once."""
    for framing in FRAMINGS:
        messages = [message.replace(b"\n", b"") for message in messages]
        found = feed(cutter(framing, MAX), pieces_of(framed(messages, framing), cuts))
        assert [message[: MAX + 3] for message in found] == [m[: MAX + 3] for m in messages]


def test_the_rest_of_an_overlong_message_is_skipped_in_any_pieces() -> None:
    """Also when several in a row are all of it."""
    heads = {"octet-counted": b"90 ", "length-prefixed": b"\0\0\0\x5a"}
    for framing in FRAMINGS[1:]:
        made = cutter(framing, MAX)
        pieces = [heads[framing] + b"x" * 67, *[b"x"] * 23, framed([b"next"], framing)]
        assert feed(made, pieces) == [OVERLONG, b"next"]
        assert not made.malformed


def test_an_overlong_line_does_not_grow_in_memory() -> None:
    framer = Framer("newline", MAX)
    assert feed(framer, [b"x" * 5000] * 100) == []
    assert len(framer._partial) == len(OVERLONG)
    assert feed(framer, [b"more\nnext\n"]) == [OVERLONG, b"next"]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (b"<13>hello\n<14>world\n", [b"<13>hello", b"<14>world"]),
        (b"9 <13>hello9 <14>world", [b"<13>hello", b"<14>world"]),
        (b"10.0.0.1 - - GET /\nnext\n", [b"10.0.0.1 - - GET /", b"next"]),
        (b"2026-11-21 a raw line\n", [b"2026-11-21 a raw line"]),
    ],
)
def test_auto_decides_by_the_first_byte_and_reads_on_where_it_was_wrong(
    first: bytes, expected: list[bytes]
) -> None:
    assert feed(Framer("auto", MAX), [first]) == expected
    assert feed(Framer("auto", MAX), [bytes([byte]) for byte in first]) == expected


def test_a_bad_count_loses_nothing_and_is_told() -> None:
    framer = Framer("octet-counted", MAX)
    assert feed(framer, [b"5 hello3 abc", b"oops\nline\n"]) == [b"hello", b"abc", b"oops", b"line"]
    assert framer.malformed


def test_newlines_between_counted_messages_are_skipped() -> None:
    """Some senders end a counted message with a newline that they do not count."""
    framer = Framer("auto", MAX)
    assert feed(framer, [b"5 hello\n5 wor", b"ld\n", b"\n2 ok\n"]) == [b"hello", b"world", b"ok"]
    assert framer.end() == []
    assert not framer.malformed


def test_newlines_inside_a_counted_message_stay() -> None:
    assert feed(Framer("auto", MAX), [b"7 one\ntwo"]) == [b"one\ntwo"]


def test_a_count_of_more_than_ten_digits_is_no_count() -> None:
    framer = Framer("octet-counted", MAX)
    assert feed(framer, [b"123456789", b"012"]) == []
    assert framer.malformed
    assert feed(framer, [b"3\n"]) == [b"1234567890123"]


def test_the_last_line_of_a_closed_connection_needs_no_newline() -> None:
    framer = Framer("newline", MAX)
    assert feed(framer, [b"one\ntwo"]) == [b"one"]
    assert framer.end() == [Messages(b"two\n")]
    assert framer.end() == []


def test_a_counted_message_cut_off_by_the_end_is_kept_and_marked() -> None:
    framer = Framer("octet-counted", MAX)
    assert feed(framer, [b"5 hello9 wor"]) == [b"hello"]
    (rest,) = framer.end()
    assert single([rest]) == [b"wor"]
    assert rest.incomplete
