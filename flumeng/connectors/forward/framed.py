"""Messages in a stream, made column by column: the reverse of how sources tell them apart."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Framing = Literal["newline", "octet-counted", "length-prefixed"]
LINE_FEED = b"#012"
"""What stands for a line feed where one ends the message, as rsyslog writes it."""


def framed(messages: pa.BinaryArray, framing: Framing) -> memoryview:
    """All ``messages`` one behind the other; one that is null is empty."""
    messages = pc.fill_null(messages, b"")
    if framing == "newline":
        lines = pc.replace_substring(messages, b"\n", LINE_FEED)
        return _bytes(pc.binary_join_element_wise(lines, b"\n", b""))
    lengths = pc.binary_length(messages)
    if framing == "octet-counted":
        counts = lengths.cast(pa.string()).cast(pa.binary())
        return _bytes(pc.binary_join_element_wise(counts, b" ", messages, b""))
    prefixes = lengths.to_numpy(zero_copy_only=False).astype(">u4")
    fixed = pa.Array.from_buffers(pa.binary(4), len(prefixes), [None, pa.py_buffer(prefixes)])
    return _bytes(pc.binary_join_element_wise(fixed.cast(pa.binary()), messages, b""))


def _bytes(parts: pa.BinaryArray) -> memoryview:
    """The values of an array lie one behind the other already."""
    _, offsets, values = parts.buffers()
    if values is None or not len(parts):
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int32)
    first, last = bounds[parts.offset], bounds[parts.offset + len(parts)]
    return memoryview(values)[first:last]
