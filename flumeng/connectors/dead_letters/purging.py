"""Purges dead letters: deletes files, or rewrites them without the selected dead letters."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from flumeng.config.component import Keep
from flumeng.connectors.dead_letters.directory import (
    DeadLetterDirectory,
    DeadLetterFile,
    OnProgress,
    each,
)
from flumeng.connectors.dead_letters.files import open_dead_letters
from flumeng.connectors.dead_letters.replay_lists import DIRECTORY, Replays, taken_mask
from flumeng.connectors.dead_letters.selection import Selection

ASIDE = "purging"
"""Directory of rewritten files that are not complete yet, below the directory of replay lists."""
DAY_SECONDS = LEFTOVER_SECONDS = 86_400.0
MOST_FILES = 10_000


@dataclass(frozen=True)
class Purge:
    """Dead letters of ``selection`` to purge; with ``replays``, only those a replay has taken."""

    selection: Selection
    replays: Replays | None = None

    def mask(self, file: DeadLetterFile, letters: pa.RecordBatch) -> pa.BooleanArray:
        mask = self.selection.mask(letters)
        if self.replays is None:
            return mask
        return pc.and_(mask, taken_mask(self.replays.taken(file), letters))


@dataclass
class Counted:
    letters: int = 0
    whole: list[DeadLetterFile] = field(default_factory=list)
    parts: list[DeadLetterFile] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.whole)


def count(
    directory: DeadLetterDirectory,
    files: list[DeadLetterFile],
    purge: Purge,
    on_progress: OnProgress = lambda _files: None,
) -> Counted:
    """Count the dead letters and files to delete. Raises UserError, UnavailableError."""

    def work(file: DeadLetterFile) -> tuple[int, bool]:
        meant = left = 0
        for _, batch in open_dead_letters(directory, file).dead(Selection()):
            here = purge.mask(file, batch).true_count
            meant, left = meant + here, left + batch.num_rows - here
        return meant, left > 0

    counted = Counted()
    for file, (meant, some_left) in each(files, work, counted.damaged, on_progress):
        counted.letters += meant
        if meant:
            (counted.parts if some_left else counted.whole).append(file)
    return counted


def delete(
    directory: DeadLetterDirectory,
    counted: Counted,
    purge: Purge,
    on_progress: OnProgress = lambda _files: None,
) -> dict[str, str]:
    """Delete the counted dead letters. Returns the damaged files, which stay, with reasons. Raises
    UserError, UnavailableError."""
    damaged: dict[str, str] = {}

    def do(files: list[DeadLetterFile], work: Callable[[DeadLetterFile], None]) -> None:
        for _ in each(files, work, damaged, on_progress):
            pass

    do(counted.whole, lambda file: remove(directory, file))
    if counted.parts:
        aside = directory.path_of(DIRECTORY, ASIDE)
        with directory.errors(aside):
            directory.store.make_directory(aside)
            _remove_leftovers(directory, aside)
        do(
            counted.parts,
            lambda file: _rewrite(directory, file, purge, f"{aside}/{uuid.uuid4().hex}"),
        )
    return damaged


def remove(directory: DeadLetterDirectory, file: DeadLetterFile) -> None:
    """Delete the file if it exists."""
    with directory.errors(file.path):
        if directory.store.exists(file.path):
            directory.store.files.delete_file(file.path)


def _rewrite(
    directory: DeadLetterDirectory, file: DeadLetterFile, purge: Purge, aside: str
) -> None:
    def keep(letters: pa.RecordBatch) -> pa.BooleanArray:
        return pc.invert(purge.mask(file, letters))

    with directory.errors(aside):
        output = directory.store.open_output(aside)
        open_dead_letters(directory, file).rewrite(output, keep)
        directory.store.sync(aside)
        directory.store.rename([(aside, file.path)])
        if directory.store.exists(aside):  # object stores have no renames
            directory.store.files.delete_file(aside)


def _remove_leftovers(directory: DeadLetterDirectory, aside: str) -> None:
    """Delete old files of killed purges; a running purge has a file there only for seconds."""
    for info in directory.store.files.get_file_info(fs.FileSelector(aside, allow_not_found=True)):
        if time.time() - (info.mtime_ns or 0) / 1e9 > LEFTOVER_SECONDS:
            directory.store.files.delete_file(info.path)


def outdated(
    files: list[DeadLetterFile], keep: Keep, now: float, needed: Collection[str] = ()
) -> list[DeadLetterFile]:
    """Return up to MOST_FILES files beyond ``keep``, oldest first, without ``needed`` names."""
    left = sum(file.bytes for file in files)
    expired: list[DeadLetterFile] = []
    for file in sorted(files, key=lambda file: (file.modified, file.name)):
        old = keep.days is not None and file.modified < now - keep.days * DAY_SECONDS
        much = keep.bytes is not None and left > keep.bytes
        if not (old or much) or len(expired) == MOST_FILES:
            break
        if file.name not in needed:
            expired.append(file)
            left -= file.bytes
    return expired
