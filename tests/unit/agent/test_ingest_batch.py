"""The vectorised way from blocks to events gives the same as a plain loop."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.agent.ingest import batch
from flumeng.agent.ingest.batch import Build
from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.frame import MAX_MESSAGE_BYTES, MAX_ROWS, Payload

SYSLOG = LineRules(max_line_bytes=10, trailers=b"\r\0", keep_empty=False)
FILE = LineRules(max_line_bytes=10, trailers=b"\r", keep_empty=True)
PEERS = [Origin(f"10.0.0.{n}", (("source", "syslog"), ("peer", f"p{n}")), SYSLOG) for n in (1, 2)]
TAILED = Origin("höst", (("source", "tail"), ("path", "/ä"), ("inode", "1:2")), FILE)
BARE = Origin("", (), SYSLOG)


def built(blocks: Sequence[ReceivedBlock]) -> tuple[list[Build], list[batch.Counts]]:
    found: list[batch.Counts] = []
    frames = list(batch.build(blocks, found.append))
    for frame, _ in frames:
        frame.validate(full=True)
        assert frame.schema == EVENT_SCHEMA
        assert frame.num_rows <= MAX_ROWS
    return frames, found


def events(frames: list[Build]) -> list[tuple[bytes, int, str, dict[str, str]]]:
    return [
        (row["body"], int(row["ts"].timestamp() * 1e6 + 0.5), row["host"], dict(row["attrs"]))
        for frame, _ in frames
        for row in frame.to_pylist()
    ]


def plainly(block: ReceivedBlock) -> tuple[list[tuple[bytes, int, str, dict[str, str]]], int]:
    """A second implementation: the lines of one block, and the number of bytes that were cut
    off."""
    if block.bounds is None:
        ends = [place for place, byte in enumerate(block.data) if byte == 10]
        starts = [0, *(end + 1 for end in ends[:-1])] if ends else []
    else:
        starts, ends = (list(bounds) for bounds in block.bounds)
    rules, found, cut_bytes = block.origin.rules, [], 0
    for start, end in zip(starts, ends, strict=True):
        raw = block.data[start:end]
        body = raw
        for _ in range(2):
            body = body[:-1] if body and body[-1] in rules.trailers else body
        attrs = dict(block.origin.attrs)
        if len(raw) > rules.max_line_bytes + 2 or len(body) > rules.max_line_bytes:
            body = body[: rules.max_line_bytes]
            attrs["truncated"] = "true"
            cut_bytes += len(raw) - len(body)
        if block.file_offset is not None:
            attrs["offset"] = str(block.file_offset + start)
        if body or rules.keep_empty:
            found.append((body, block.received_us, block.origin.host, attrs))
    return found, cut_bytes


LINE = st.lists(st.sampled_from([b"a", b"b", b"\r", b"\0", b"\xff", b"xxxxxx"]), max_size=5).map(
    b"".join
)


@st.composite
def blocks(draw: st.DrawFn) -> ReceivedBlock:
    origin = draw(st.sampled_from([*PEERS, TAILED, BARE]))
    lines = draw(st.lists(LINE, max_size=6))
    received = draw(st.integers(0, 2**40))
    if origin is TAILED:
        offset = draw(st.integers(0, 2**40))
        data = b"".join(line + b"\n" for line in lines)
        return ReceivedBlock(data, origin, received, file_offset=offset)
    if draw(st.booleans()):
        return ReceivedBlock(b"".join(line + b"\n" for line in lines), origin, received)
    data, bounds = b"", (array("q"), array("q"))
    for line in lines:
        data += draw(st.sampled_from([b"", b"5 ", b"\n"]))
        bounds[0].append(len(data))
        data += draw(st.sampled_from([line, line + b"\n" + line]))
        bounds[1].append(len(data))
    return ReceivedBlock(data, origin, received, bounds=bounds)


@settings(deadline=None)  # the first call imports
@given(st.lists(blocks(), max_size=8))
def test_group_of_blocks_gives_the_events_of_each_block(group: list[ReceivedBlock]) -> None:
    """Bodies byte by byte, and no host, time or attribute on the wrong event; each is counted."""
    frames, found = built(group)
    expected = [plainly(block) for block in group]
    assert events(frames) == [event for events, _ in expected for event in events]
    assert found == [
        (block, len(events), sum("truncated" in attrs for *_, attrs in events), cut_bytes)
        for block, (events, cut_bytes) in zip(group, expected, strict=True)
    ]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\0\n", b"\r\0\n"])
def test_line_ends_of_all_senders_are_removed(ending: bytes) -> None:
    data = b"one" + ending + b"t\xffo" + ending
    assert [event[0] for event in events(built([ReceivedBlock(data, PEERS[0], 0)])[0])] == [
        b"one",
        b"t\xffo",
    ]


@pytest.mark.slow
def test_a_frame_never_holds_more_rows_than_the_journal_takes() -> None:
    block = ReceivedBlock(b"a\n" * (MAX_ROWS + 7), PEERS[0], 0)
    frames, _ = built([block, block])
    assert sum(frame.num_rows for frame, _ in frames) == 2 * (MAX_ROWS + 7)


def state_after(frames: list[Build]) -> dict[str, Any]:
    return {key: value for _, state in frames for key, value in state.items()}


@pytest.mark.slow
def test_state_is_in_the_frame_of_the_last_line_that_it_covers() -> None:
    """Not in an earlier one (lines would be lost in a crash) nor in a later one (twice there)."""
    size = batch.FRAME_BYTES // 4
    group = [
        ReceivedBlock(
            b"line\n" * (size // 5), TAILED, 0, state={"read": number}, file_offset=number * size
        )
        for number in range(20)
    ]
    frames, _ = built(group)
    assert len(frames) > 3
    rows = 0
    for frame, state in frames:
        rows += frame.num_rows
        assert state == {"read": rows // (size // 5) - 1}


def test_source_state_stays_with_its_lines_when_a_group_is_split() -> None:
    full = ReceivedBlock(b"\n" * MAX_ROWS, TAILED, 0, state={"a": 1}, file_offset=0)
    more = ReceivedBlock(b"\n" * 3, TAILED, 0, state={"b": 2}, file_offset=0)
    frames, _ = built([full, more])
    assert [(frame.num_rows, state) for frame, state in frames] == [
        (MAX_ROWS, {"a": 1}),
        (3, {"b": 2}),
    ]


def test_block_with_state_that_does_not_fit_into_a_frame_is_an_error() -> None:
    block = ReceivedBlock(b"\n" * (MAX_ROWS + 1), TAILED, 0, state={"a": 1}, file_offset=0)
    with pytest.raises(AssertionError, match="one frame"):
        built([block])


def test_source_state_without_events_is_journaled() -> None:
    frames, _ = built([ReceivedBlock(b"", TAILED, 0, state={"gone": None})])
    assert [(frame.num_rows, state) for frame, state in frames] == [(0, {"gone": None})]


def test_empty_blocks_give_no_frames() -> None:
    assert built([]) == ([], [])
    empty = ReceivedBlock(b"\n\r\n\0\n", PEERS[0], 0)
    assert built([empty]) == ([], [(empty, 0, 0, 0)])


LONG = tuple((f"name{number}", "\N{SNOWMAN}" * 200) for number in range(4))
"""The maximum length of a sender's attributes: 2,400 bytes."""


def short_lines(count: int) -> bytes:
    """Incompressible lines of two bytes each."""
    data = bytearray(random.Random(1).randbytes(3 * count).replace(b"\n", b"x"))
    data[2::3] = b"\n" * count
    return bytes(data)


@pytest.mark.slow
def test_frames_are_cut_by_their_built_size_and_not_the_received_one() -> None:
    """Attributes count for each line; no frame of a megabyte of lines becomes one of 160."""
    rules = LineRules(1 << 20, b"", keep_empty=True)
    data = short_lines(MAX_ROWS)
    block = ReceivedBlock(data, Origin("h", LONG, rules), 0)
    frames, found = built([block, ReceivedBlock(b"next\n", PEERS[0], 0)])
    assert len(frames) > 15
    assert all(frame.nbytes <= batch.BUILT_BYTES for frame, _ in frames)
    assert [one.events for one in found] == [MAX_ROWS, 1]
    bodies = [body for frame, _ in frames for body in frame["body"].to_pylist()]
    assert bodies == [*data.split(b"\n")[:-1], b"next"]
    assert dict(frames[7][0]["attrs"][5].as_py()) == dict(LONG)


def test_oversized_line_is_in_a_frame_of_its_own() -> None:
    rules = LineRules(1 << 24, b"", keep_empty=False)
    lines = [b"a", b"x" * (1 << 24), b"b", b"c"]
    frames, _ = built([ReceivedBlock(b"\n".join(lines) + b"\n", Origin("h", (), rules), 0)])
    assert [frame["body"].to_pylist() for frame, _ in frames] == [[b"a"], lines[1:2], [b"b", b"c"]]


@pytest.mark.slow
def test_repeated_attributes_cost_once_on_disk() -> None:
    """Also of lines that nothing can compress, and of a file's longest name, whose lines with their
    state are in one frame."""
    path = (("source", "tail"), ("path", "/" + "p" * 4095))
    block = ReceivedBlock(
        short_lines(MAX_ROWS), Origin("h", path, FILE), 0, state={"a": 1}, file_offset=0
    )
    ((frame, state),), _ = built([block])
    payload = Payload.encode(frame, state)
    assert frame.nbytes > 4 * MAX_MESSAGE_BYTES
    assert payload.message.size < 5 << 20
    bare = ReceivedBlock(short_lines(MAX_ROWS), Origin("h", (), FILE), 0)
    one = Payload.encode(built([bare])[0][0][0], None)
    attributed = ReceivedBlock(short_lines(MAX_ROWS), Origin("h", LONG[:2], FILE), 0)
    many = [Payload.encode(frame, None) for frame, _ in built([attributed])[0]]
    assert sum(payload.message.size for payload in many) < 4 * one.message.size


def test_shortage_of_memory_drops_no_block() -> None:
    """The flow starts again, and receives again what was not acknowledged."""

    def make(_frame: object, _state: object) -> Payload:
        raise MemoryError("malloc of size 64 failed")

    unfit: list[Exception] = []
    blocks = [ReceivedBlock(b"1\n", PEERS[0], 0), ReceivedBlock(b"2\n", PEERS[0], 0)]
    encoded = batch.encode(
        blocks, lambda _counted: None, lambda _, error: unfit.append(error), make
    )
    with pytest.raises(MemoryError):
        list(encoded)
    assert unfit == []


def test_block_that_cannot_be_encoded_harms_no_other() -> None:
    bad = Origin("h", (("path", "\udcff"),), FILE)
    group = [ReceivedBlock(b"%d\n" % n, bad if n in (3, 4) else PEERS[0], 0) for n in range(8)]
    found: list[ReceivedBlock] = []
    unfit: list[tuple[ReceivedBlock, Exception]] = []
    payloads = list(
        batch.encode(
            group,
            lambda one: found.append(one.block),
            lambda *pair: unfit.append(pair),
            Payload.encode,
        )
    )
    assert sum(payload.rows for payload in payloads) == 6
    assert [block.data for block in found] == [b"0\n", b"1\n", b"2\n", b"5\n", b"6\n", b"7\n"]
    assert [block for block, _ in unfit] == group[3:5]
    assert all(isinstance(error, UnicodeEncodeError) for _, error in unfit)
