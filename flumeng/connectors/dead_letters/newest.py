"""The newest dead letters as JSON, without reading all files."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from flumeng.connectors.dead_letters.choice import Choice
from flumeng.connectors.dead_letters.directory import LetterDirectory, LetterFile, Tell, each
from flumeng.connectors.dead_letters.reading import open_letters

CLOCKS_SECONDS = 3_600.0
"""The most that a letter is younger than its file, by clocks that differ."""


@dataclass(frozen=True, order=True)
class _Letter:
    moment: int
    path: str
    row: int


def newest(
    directory: LetterDirectory,
    files: list[LetterFile],
    choice: Choice,
    limit: int,
    tell: Tell = lambda _files: None,
) -> tuple[list[bytes], dict[str, str]]:
    """At most ``limit`` chosen letters, the newest first, and the damaged files with why. Raises
    UserError, UnavailableError."""
    by_path = {file.path: file for file in files}
    kept: list[_Letter] = []
    damaged: dict[str, str] = {}

    def work(file: LetterFile) -> list[_Letter]:
        since = kept[0].moment if len(kept) == limit else choice.since
        return list(_of_file(directory, file, replace(choice, since=since), limit))

    by_age = sorted(files, key=lambda file: -file.modified)
    with closing(each(by_age, work, damaged, tell)) as looked:
        for file, found in looked:
            kept = heapq.nlargest(limit, [*kept, *found])[::-1]
            if len(kept) == limit and kept[0].moment > (file.modified + CLOCKS_SECONDS) * 1e6:
                break
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for letter in kept:
        rows[letter.path].append(letter.row)
    texts: dict[str, dict[int, bytes]] = {}
    for file, shown in each(
        [by_path[path] for path in rows],
        lambda file: open_letters(directory, file).shown(rows[file.path]),
        damaged,
    ):
        texts[file.path] = shown
    newest_first = (letter for letter in reversed(kept) if letter.path in texts)
    return [texts[letter.path][letter.row] for letter in newest_first], damaged


def _of_file(
    directory: LetterDirectory, file: LetterFile, choice: Choice, limit: int
) -> Iterator[_Letter]:
    for first, batch in open_letters(directory, file).dead(choice):
        moments = batch["dead_time"].cast(pa.int64()).fill_null(0).to_numpy()
        rows = np.flatnonzero(choice.mask(batch).to_numpy(zero_copy_only=False))
        for row in rows[np.argsort(-moments[rows], kind="stable")[:limit]]:
            yield _Letter(int(moments[row]), file.path, first + int(row))
