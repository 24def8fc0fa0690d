"""Memory of windows: it is used again only when no buffer refers to it."""

from __future__ import annotations

import pyarrow as pa

from flumeng.journal.log.window_memory import ROUNDED_BYTES, WindowMemory


def test_memory_is_not_used_again_while_a_buffer_refers_to_it() -> None:
    memory = WindowMemory()
    first = memory.take(100)
    first[:4] = b"abcd"
    part = pa.py_buffer(first).slice(0, 4)
    frames = pa.Array.from_buffers(pa.binary(4), 1, [None, part])
    del first, part
    second = memory.take(100)
    second[:4] = b"efgh"
    assert frames.to_pylist() == [b"abcd"]


def test_memory_is_used_again_when_nothing_refers_to_it() -> None:
    memory = WindowMemory()
    first = memory.take(100)
    address = pa.py_buffer(first).address
    del first
    assert pa.py_buffer(memory.take(ROUNDED_BYTES)).address == address


def test_kept_memory_is_bounded() -> None:
    memory = WindowMemory(2 * ROUNDED_BYTES)
    taken = [memory.take(1) for _ in range(3)]
    addresses = {pa.py_buffer(view).address for view in taken}
    assert len(addresses) == 3
    first = pa.py_buffer(taken[0]).address
    del taken
    assert first not in {pa.py_buffer(memory.take(1)).address for _ in range(2)} | {
        pa.py_buffer(view).address for view in [memory.take(1), memory.take(1)]
    }
