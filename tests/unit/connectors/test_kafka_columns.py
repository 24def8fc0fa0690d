"""Messages in librdkafka's memory become columns, for any content."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from flumeng.connectors.kafka import columns
from flumeng.connectors.kafka.librdkafka import MESSAGE, MessageBatch
from flumeng.connectors.kafka.messages import HEADERS


def in_memory(values: Sequence[bytes | None]) -> pa.Array:
    """The array that ``binaries`` makes of ``values``."""
    buffers = [None if value is None else ctypes.create_string_buffer(value) for value in values]
    places = [0 if buffer is None else ctypes.addressof(buffer) for buffer in buffers]
    sizes = [0 if value is None else len(value) for value in values]
    return columns.binaries(np.array(places, np.uintp), np.array(sizes, np.uintp))


def test_values_are_copied_with_nulls_and_empty_ones() -> None:
    for values in (
        [],
        [b"a"],
        [None],
        [None, b"", b"\x00\xff" * 500, None, b"end"],
        [b"%d" % number for number in range(1000)],
    ):
        found = in_memory(values)
        found.validate(full=True)
        assert found.type == pa.binary()
        assert found.to_pylist() == values
    assert in_memory([b"a", b""]).null_count == 0


def test_values_anywhere_in_memory_are_copied() -> None:
    pairs = np.zeros((2, 2), np.uintp)
    buffer = ctypes.create_string_buffer(b"xyz")
    pairs[:, 0], pairs[:, 1] = ctypes.addressof(buffer), (1, 3)
    assert columns.binaries(*pairs.T).to_pylist() == [b"x", b"xyz"]


def test_time_of_a_message_without_one_is_null() -> None:
    """Old formats have no field for it, later ones -1."""
    found = columns.times(np.array([5, -1, 0, 0]), np.array([1, 1, 0, 1]))
    assert found.cast(pa.int64()).to_pylist() == [5000, None, None, 0]


def maps(*messages: Sequence[tuple[bytes, bytes | None]]) -> pa.MapArray:
    headers = [header for message in messages for header in message]
    names = pa.array([name for name, _ in headers], pa.binary())
    values = pa.array([value for _, value in headers], pa.binary())
    counts = np.array([len(message) for message in messages], np.int64)
    found = columns.maps(counts, columns.texts(names), values)
    found.validate(full=True)
    assert found.type == HEADERS
    return found


def test_last_header_of_a_repeated_name_is_kept() -> None:
    found = maps(
        [],
        [(b"a", b"1"), (b"b", None), (b"a", b"2"), (b"c", b""), (b"a", b"3")],
        [(b"a", b"4")],
        [],
        [(b"b", b"5"), (b"b", None)],
        [],
    )
    last = [("a", b"3"), ("b", None), ("c", b"")]
    assert found.to_pylist() == [[], last, [("a", b"4")], [], [("b", None)], []]


def test_headers_of_several_names_stay_in_order() -> None:
    found = maps([(b"z", b"1"), (b"a", b"2")], [(b"a", b"3")])
    assert found.to_pylist() == [[("z", b"1"), ("a", b"2")], [("a", b"3")]]


def test_header_names_that_are_no_text_are_replaced() -> None:
    found = maps([(b"\xff", b"1"), (b"\xc3\xa9", b"2"), (b"\xfe", b"3")], [(b"", b"4")])
    assert found.to_pylist() == [[("\ufffd", b"3"), ("é", b"2")], [("", b"4")]]


def test_pieces_stay_below_the_size_limit_of_arrow() -> None:
    taken = MessageBatch(np.empty(0, np.uintp))
    sizes = [10, 0, columns.PIECE_BYTES, 1, 10**9, 10**9, 10**9, 5]
    taken.records = np.zeros(len(sizes), MESSAGE)
    taken.records["body_bytes"] = sizes
    everything = np.arange(len(sizes))
    found = columns.pieces(taken, everything)
    assert np.concatenate(found).tolist() == everything.tolist()
    assert all(sum(sizes[number] for number in piece) < 2**31 for piece in found)
    assert len(found) > 3
    assert columns.pieces(taken, everything[:2])[0].tolist() == [0, 1]
    assert columns.pieces(taken, everything[:0]) == []


def test_empty_batch_of_messages_has_no_records() -> None:
    with MessageBatch(np.empty(0, np.uintp)) as taken:
        assert len(taken.records) == 0
        assert taken.examined(np.empty(0, np.int64))[0].tolist() == []
