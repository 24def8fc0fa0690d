"""The tables of bytes in docs/reference/journal-format.md are those of the code."""

from __future__ import annotations

import re
import struct
from itertools import accumulate
from pathlib import Path

import pytest

from flumeng.journal.log import checkpoint, frame, segment

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "journal-format.md"


def documented(heading: str) -> list[tuple[int, int]]:
    """Offset and size of each field in the table below a heading."""
    text = PAGE.read_text().partition(f"### {heading}\n")[2].partition("\n#")[0]
    return [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", text, re.M)]


def coded(fields: struct.Struct, size: int) -> list[tuple[int, int]]:
    """The same for a struct that is followed by zeros and a checksum of four bytes."""
    sizes = [struct.calcsize(f"<{part}") for part in re.findall(r"\d*[a-zA-Z]", fields.format)]
    padding = size - 4 - sum(sizes)
    sizes += [padding, 4] if padding else [4]
    return list(zip(accumulate(sizes, initial=0), sizes, strict=False))


@pytest.mark.parametrize(
    ("heading", "fields", "size"),
    [
        ("Segment header", segment.FIELDS, segment.SEGMENT_HEADER_BYTES),
        ("Frame header", frame.FIELDS, frame.HEADER_BYTES),
        ("Checkpoint", checkpoint.FIELDS, checkpoint.BLOCK_BYTES),
    ],
)
def test_documented_bytes_are_the_written_ones(
    heading: str, fields: struct.Struct, size: int
) -> None:
    assert documented(heading) == coded(fields, size)
