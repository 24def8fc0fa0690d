"""Messages come out of a TCP stream whole, however the network cut it into pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flumeng.connectors.api.framing import Cutter, Framer, Framing, Messages, cutter

MAX = 64
OVERLONG = b"x" * (MAX + 3)
FRAMINGS: tuple[Framing, ...] = ("newline", "octet-counted", "length-prefixed")


def single(found: Iterable[Messages]) -> list[bytes]:
    """The single messages, without the trailers that the commit thread removes."""
    messages: list[bytes] = []
    for data, bounds, *_ in found:
        if bounds is None:
            assert data.endswith(b"\n")
            messages += data[:-1].split(b"\n")
        else:
            messages += [data[start:end] for start, end in zip(*bounds, strict=True)]
    return messages


def feed(framer: Cutter, pieces: Iterable[bytes]) -> list[bytes]:
    """Feed through one buffer that is overwritten each time, as in the worker."""
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
def test_overlong_message_is_passed_on_cut_and_the_next_one_is_whole(
    messages: list[bytes], cuts: list[int]
) -> None:
    """Its excess makes the commit thread cut and count it, also when it came at once."""
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
def test_auto_framing_is_chosen_by_the_first_byte_and_corrected(
    first: bytes, expected: list[bytes]
) -> None:
    assert feed(Framer("auto", MAX), [first]) == expected
    assert feed(Framer("auto", MAX), [bytes([byte]) for byte in first]) == expected


def test_bad_count_loses_nothing_and_is_reported() -> None:
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


def test_a_count_of_many_digits_is_no_count() -> None:
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


def test_nul_ends_a_message_as_newline_does() -> None:
    """Python's own handler for syslog over TCP sends nothing else."""
    framer = Framer("auto", MAX, nul_ends=True)
    assert feed(framer, [b"<13>one\0<13>two\0<1", b"3>three\n<13>four\0"]) == [
        b"<13>one", b"<13>two", b"<13>three", b"<13>four",
    ]  # fmt: skip
    assert framer.end() == []
    assert feed(Framer("newline", MAX), [b"a\0b\n"]) == [b"a\0b"], "a line may hold one"


def test_nuls_between_counted_messages_are_skipped_and_those_inside_stay() -> None:
    framer = Framer("auto", MAX, nul_ends=True)
    assert feed(framer, [b"5 hel\0o\0005 world\0"]) == [b"hel\0o", b"world"]
    assert not framer.malformed


@pytest.mark.parametrize("framing", ["auto", "octet-counted"])
@pytest.mark.parametrize("line", [b"1580515200 epoch line", b"9999999999 <13>x", b"123456789 x"])
def test_a_time_at_the_beginning_of_a_line_is_no_octet_count(line: bytes, framing: Framing) -> None:
    framer = Framer(framing, MAX)
    assert feed(framer, [line + b"\nnext\n", b"last\n"]) == [line, b"next", b"last"]
    assert framer.malformed
    assert framer.skipped == 0


def test_a_count_over_the_limit_is_text_unless_a_syslog_message_follows() -> None:
    """Or the framing was asked for: then it is an over-long message, and the next one is whole."""
    sizes = b"2000 items done\nnext\n"
    assert feed(Framer("auto", MAX), [sizes]) == [b"2000 items done", b"next"]
    assert feed(Framer("auto", MAX), [b"2000 ", sizes[5:]]) == [b"2000 items done", b"next"]
    message = b"<13>" + b"x" * 196
    for framing, text in (("auto", message), ("octet-counted", b"y" * 200)):
        framer = Framer(framing, MAX)  # type: ignore[arg-type]
        found = feed(framer, [b"200 ", text[:100], text[100:] + b"5 whole"])
        assert [each[: MAX + 3] for each in found] == [text[: MAX + 3], b"whole"]
        assert sum(map(len, found)) + framer.skipped == 205
        assert not framer.malformed


def test_digits_at_the_end_are_a_last_line() -> None:
    framer = Framer("auto", MAX)
    assert feed(framer, [b"123"]) == []
    assert framer.end() == [Messages(b"123\n")]


def test_skipped_bytes_of_an_endless_line_are_counted() -> None:
    for nul_ends in (False, True):
        framer = Framer("auto", MAX, nul_ends=nul_ends)
        assert feed(framer, [b"x" * 5000] * 100 + [b"x\nnext\n"]) == [OVERLONG, b"next"]
        assert framer.skipped == 500_001 - len(OVERLONG)


def plainly(stream: bytes, framing: Framing, *, nul_ends: bool) -> list[bytes]:
    """A second implementation: all messages of a whole stream in their full length."""
    messages: list[bytes] = []
    counting = framing == "octet-counted"
    while framing == "auto":
        stream = stream.lstrip(b"\r\n\0")
        counting = re.match(rb"[1-9]", stream) is not None
        if not stream.startswith(b"PROXY ") or b"\n" not in stream[: MAX + 3]:
            break
        line, _, stream = stream.partition(b"\n")
        messages.append(line)
    while counting:
        stream = stream.lstrip(b"\r\n\0")
        head = re.match(rb"(\d{1,8}) (.?)", stream, re.DOTALL)
        count, first = (int(head[1]), head[2]) if head else (2**25, b"?")
        if head and count > MAX and framing == "auto" and not first:
            return [*messages, b""]
        if head and count <= 2**24 and (count <= MAX or framing != "auto" or first == b"<"):
            messages.append(stream[head.end(1) + 1 :][:count])
            stream = stream[head.end(1) + 1 :][count:]
            continue
        frames = re.finditer(rb"(?<!\d)([1-9]\d{0,7}) <\d{1,3}>", stream)
        frame = next((one for one in frames if int(one[1]) <= 2**24), None)
        if frame is None or re.fullmatch(rb"\d{1,8}", stream):
            break
        messages += lines_of(stream[: frame.start()], nul_ends=nul_ends)
        stream = stream[frame.start() :]
    return messages + lines_of(stream, nul_ends=nul_ends)


def lines_of(text: bytes, *, nul_ends: bool) -> list[bytes]:
    lines = (text.replace(b"\0", b"\n") if nul_ends else text).split(b"\n")
    return lines if lines[-1] else lines[:-1]


SYSLOG = [
    b"<13>1 2026-11-20T10:00:0%dZ h app - - - %b" % (number, text)
    for number, text in enumerate([b"plain", b"gr\xc3\xbcn", b"one", b"two", b"three 7"])
]


@pytest.mark.parametrize("framing", ["auto", "octet-counted"])
@pytest.mark.parametrize("wrong", [-20, -1, 1, 7, 30])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_wrong_count_costs_no_message_but_its_neighbour(
    framing: Framing, wrong: int, size: int
) -> None:
    """A count that is too large takes the beginning of the next message."""
    stream = b"".join(
        b"%d %b" % (len(message) + wrong * (number == 1), message)
        for number, message in enumerate(SYSLOG)
    )
    framer = Framer(framing, 1000)
    found = feed(framer, [stream[at : at + size] for at in range(0, len(stream), size)])
    whole = 3 if wrong > 0 else 2
    damaged = found[1 : whole - 5]
    assert [found[0], *found[whole - 5 :]] == [SYSLOG[0], *SYSLOG[whole:]]
    assert damaged[0] == stream[stream.index(SYSLOG[1]) :][: len(SYSLOG[1]) + wrong]
    assert len(damaged) <= 4
    assert (framer.malformed, "cut at newlines" in framer.complaint) == (True, True)
    assert framer.skipped == 0


@pytest.mark.parametrize("before", [b"\n", b"\r\n\0", b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n"])
@pytest.mark.parametrize("between", [b"", b"\r\n", b"\0"])
@pytest.mark.parametrize("size", [1, 10_000])
def test_bytes_around_counted_messages_do_no_harm(before: bytes, between: bytes, size: int) -> None:
    stream = before + b"".join(b"%d %b%b" % (len(one), one, between) for one in SYSLOG)
    framer = Framer("auto", 1000)
    found = feed(framer, [stream[at : at + size] for at in range(0, len(stream), size)])
    assert found == [*filter(None, [before.strip(b"\n\0")] * (before > b"P")), *SYSLOG]
    assert not framer.malformed


def test_a_syslog_message_whose_end_is_nul_may_have_several_lines() -> None:
    trace = b"<11>failed\nTraceback (most recent call last):\n  File x\nKeyError: 7"
    for size in (1, 5, 1000):
        framer = cutter("nul", 1000, nul_ends=True)
        stream = trace + b"\0<13>next\0last"
        assert feed(framer, [stream[at : at + size] for at in range(0, len(stream), size)]) == [
            trace,
            b"<13>next",
        ]
        assert single(framer.end()) == [b"last"]
        assert framer.end() == []
    framer = cutter("nul", MAX)
    assert feed(framer, [b"x" * 500, b"x\0next\0"]) == [OVERLONG, b"next"]


parts = st.one_of(
    st.binary(max_size=90),
    st.sampled_from(
        [
            *[b"\n", b"\0", b" ", b"\r\n", b"0 ", b"5 hello", b"99999999 ", b"16777216 <"],
            *[b"16777217 <", b"9 <13>hello", b"7 <13>hello", b"16777217 <1>", b"PROXY ", b"PR"],
        ]
    ),
    st.integers(0, 200).map(lambda size: b"%d %b" % (size, b"<" + b"y" * (size - 1))),
    st.integers(0, 200).map(lambda size: b"%d %b\n" % (size + 1, b"z" * size)),
    st.integers(0, 99_999_999_999).map(lambda number: b"%d line\n" % number),
    st.text(alphabet="<13>a1 \n\0", max_size=80).map(str.encode),
)


@settings(max_examples=5 * settings().max_examples)
@given(
    st.lists(parts, max_size=12).map(b"".join),
    st.lists(st.integers(0, 10**6), max_size=20),
    st.sampled_from(["auto", "newline", "octet-counted"]),
    st.booleans(),
)
@example(b"1580515200 epoch line\n12 hello\n", [4], "auto", True)
@example(b"5 hello3 abc5", [], "octet-counted", True)
@example(b"PROXY " + bytes(MAX - 3) + b"\n\0", [], "auto", False)
def test_framing_agrees_with_a_plain_reading_of_the_whole_stream(
    stream: bytes, cuts: list[int], framing: Framing, nul_ends: bool
) -> None:
    """For any cut; the bytes left out of over-long messages are counted exactly."""
    framer = Framer(framing, MAX, nul_ends=nul_ends)
    found = feed(framer, pieces_of(stream, cuts)) + single(framer.end())
    expected = plainly(stream, framing, nul_ends=nul_ends)
    assert [each[: MAX + 3] for each in found] == [each[: MAX + 3] for each in expected]
    assert sum(map(len, found)) + framer.skipped == sum(map(len, expected))


@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_sender_that_counts_one_byte_too_many_in_each_message_loses_none(at_once: int) -> None:
    """Its messages come one by one, or several in a packet."""
    texts = [b"<13>1 2026-11-20T10:00:%02dZ h app - - - text %d" % (n, n * n) for n in range(14)]
    framed = [b"%d %s" % (len(text) + 1, text) for text in texts]
    packets = [b"".join(framed[n : n + at_once]) for n in range(0, len(framed), at_once)]
    framer = cutter("auto", 1 << 16)
    assert [*feed(framer, packets), *single(framer.end())] == texts
    assert (framer.malformed, "corrected" in framer.complaint) == (True, True)


def test_wrong_octet_count_does_not_join_messages() -> None:
    texts = [b"<13>1 - h app - - - took 4", b"<13>1 - h app - - - and more text", b"<13>1 - - next"]
    framer = cutter("auto", 1 << 16)
    data = b"%d %s%d %s%d %s" % (len(texts[0]), texts[0], 10, texts[1], len(texts[2]), texts[2])
    found = [*feed(framer, [data]), *single(framer.end())]
    assert (found[0], found[-1], b"".join(found[1:-1])) == (texts[0], texts[2], texts[1])
