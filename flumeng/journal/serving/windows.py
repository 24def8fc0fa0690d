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
    for first in windows:
        if (rest := behind(first, journal, start)) is not None:
            yield rest
        break
    yield from windows


def behind(window: Window, journal: str, start: int) -> Window | None:
    """Return the window without a first frame that begins below ``start``; None if no other is."""
    header = FrameHeader.unpack(window.buffer, window.offsets[0], identity(journal))
    if header.first_seq >= start:
        return window
    offsets = window.offsets[1:]
    return Window(window.buffer, offsets, window.encrypted) if len(offsets) > 1 else None


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
