"""The letters that died last, as JSON, without reading all files."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from flumeng.errors import CorruptError
from flumeng.letters.choice import Choice
from flumeng.letters.place import GoneError, LetterFile, LetterPlace
from flumeng.letters.reading import open_letters

CLOCKS_SECONDS = 3_600.0
"""A letter is at most so much younger than its file: the clocks of their hosts may differ."""


@dataclass(frozen=True, order=True)
class _Letter:
    moment: int
    path: str
    row: int


def newest(
    place: LetterPlace, files: list[LetterFile], choice: Choice, limit: int
) -> tuple[list[bytes], dict[str, str]]:
    """At most ``limit`` letters of ``choice``, the newest first; and the files that could not be
    read, with why. Raises UserError, UnavailableError."""
    by_path = {file.path: file for file in files}
    kept: list[_Letter] = []
    damaged: dict[str, str] = {}
    for file in sorted(files, key=lambda file: -file.modified):
        if len(kept) == limit and kept[0].moment > (file.modified + CLOCKS_SECONDS) * 1e6:
            break
        try:
            found = list(_of_file(place, file, choice, limit))
        except CorruptError as error:
            damaged[file.path] = str(error)
        except GoneError:
            continue
        else:
            kept = heapq.nlargest(limit, [*kept, *found])[::-1]
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for letter in kept:
        rows[letter.path].append(letter.row)
    texts = {path: open_letters(place, by_path[path]).shown(some) for path, some in rows.items()}
    return [texts[letter.path][letter.row] for letter in reversed(kept)], damaged


def _of_file(place: LetterPlace, file: LetterFile, choice: Choice, limit: int) -> Iterator[_Letter]:
    first = 0
    for batch in open_letters(place, file).dead(Choice()):
        moments = batch["dead_time"].cast(pa.int64()).fill_null(0).to_numpy()
        rows = np.flatnonzero(choice.mask(batch).to_numpy(zero_copy_only=False))
        for row in rows[np.argsort(-moments[rows], kind="stable")[:limit]]:
            yield _Letter(int(moments[row]), file.path, first + int(row))
        first += batch.num_rows
