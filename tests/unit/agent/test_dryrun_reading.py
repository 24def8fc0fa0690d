"""Lines of pipes, as soon as they are written."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import pytest

from flumeng.agent.dryrun.reading import lines


@pytest.mark.parametrize(
    ("encoding", "mark", "codec"),
    [
        ("utf-8", b"", "utf-8"),
        ("utf-8", codecs.BOM_UTF8, "utf-8"),
        ("latin-1", b"", "latin-1"),
        ("utf-16", codecs.BOM_UTF16_LE, "utf-16-le"),
    ],
)
def test_line_is_yielded_before_the_next_is_written(encoding: str, mark: bytes, codec: str) -> None:
    reader, writer = os.pipe()
    given = lines([Path(f"/dev/fd/{reader}")], 100, encoding)
    os.write(writer, mark)
    for text in ("ä", "b"):
        os.write(writer, f"{text}\n".encode(codec))
        assert next(given)[0] == f"{text}\n".encode()
    os.write(writer, "rest".encode(codec))
    os.close(writer)
    assert [messages[0] for messages in given] == [b"rest\n"]
    os.close(reader)
