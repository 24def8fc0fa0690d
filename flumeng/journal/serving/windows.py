"""Windows of frames as the record batches that Flight servers send."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pyarrow as pa

from flumeng.journal.log.frame import FrameHeader, identity
from flumeng.journal.log.segment import Window
from flumeng.journal.serving.wire import FRAMES_SCHEMA


def aligned(windows: Iterator[Window], journal: str, start: int) -> Iterator[Window]:
    """Drop the frame that begins below ``start``, which only the first window can have."""
    owner, first = identity(journal), True
    for window in windows:
        if first and FrameHeader.unpack(window.buffer, window.offsets[0], owner).first_seq < start:
            offsets = window.offsets[1:]
            if len(offsets) > 1:
                yield Window(window.buffer, offsets, window.encrypted)
        else:
            yield window
        first = False


def batch_of(window: Window) -> pa.RecordBatch:
    """Return a record batch with the window's buffer, which is not copied."""
    # Not pa.array: that imports pandas, 50 MB in every ingest worker.
    offsets = pa.py_buffer(array("i", window.offsets))
    frames = pa.Array.from_buffers(
        pa.binary(), len(window.offsets) - 1, [None, offsets, window.buffer]
    )
    return pa.RecordBatch.from_arrays([frames], schema=FRAMES_SCHEMA)


def end_of(window: Window, journal: str) -> int:
    """Return the seq behind the window's last frame."""
    return FrameHeader.unpack(window.buffer, window.offsets[-2], identity(journal)).end
