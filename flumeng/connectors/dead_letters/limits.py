"""What is too much of a flow's dead letters: files that are older, or more bytes, than it keeps."""

from __future__ import annotations

from collections.abc import Collection

from flumeng.config.component import Keep
from flumeng.connectors.dead_letters.directory import LetterFile

DAY_SECONDS = 86_400.0
MOST_FILES = 10_000
"""So many files go at once; the next look goes on."""


def outdated(
    files: list[LetterFile], keep: Keep, now: float, needed: Collection[str] = ()
) -> list[LetterFile]:
    """The files that are to go, the oldest first, without those whose names are ``needed``. A
    file is as old as the store says, in seconds since the epoch as ``now``."""
    left = sum(file.bytes for file in files)
    found: list[LetterFile] = []
    for file in sorted(files, key=lambda file: (file.modified, file.name)):
        old = keep.days is not None and file.modified < now - keep.days * DAY_SECONDS
        much = keep.bytes is not None and left > keep.bytes
        if not (old or much) or len(found) == MOST_FILES:
            break
        if file.name not in needed:
            found.append(file)
            left -= file.bytes
    return found
