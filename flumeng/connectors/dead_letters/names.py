"""What the parts of a replay's list are called as partitions: ``letters.3.5f2a90c1@letters``.

The end of the list's name is in it, so an ack never speaks about the letters of another replay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from flumeng.connectors.dead_letters.options import LettersSource

INPUT = "letters"
_NAME = re.compile(rf"letters\.([0-9]+)\.([0-9a-z]+)@{INPUT}", re.ASCII)


def name_of(source: LettersSource, part: int) -> str:
    return f"letters.{part}.{source.replay.rpartition('-')[2]}@{INPUT}"


def part_of(partition: str) -> int:
    found = _NAME.fullmatch(partition)
    assert found, partition
    return int(found[1])


def parts(source: LettersSource) -> dict[str, int]:
    """All partitions, and how many rows each has."""
    return {name_of(source, part): rows for part, rows in enumerate(source.rows)}


def known(source: LettersSource, partitions: Iterable[str]) -> dict[str, int]:
    """Those of ``partitions`` that are parts of this source's list, and their rows."""
    own = parts(source)
    return {name: own[name] for name in partitions if name in own}
