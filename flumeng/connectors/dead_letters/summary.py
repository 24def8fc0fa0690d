"""Reports on dead letters: the newest ones, and counts by place, revision and kind of reason."""

from __future__ import annotations

import heapq
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.dead_letters.directory import (
    DeadLetterDirectory,
    DeadLetterFile,
    OnProgress,
    each,
)
from flumeng.connectors.dead_letters.files import open_dead_letters
from flumeng.connectors.dead_letters.replay_lists import Replays, taken_mask
from flumeng.connectors.dead_letters.selection import Selection

REASON_CHARACTERS = 120
COUNTED_AT_ONCE = 2_000
MOST_KINDS = 1_000
"""The reasons of further kinds become OTHER."""
OTHER = "(other reasons)"
_VALUES = (
    (r"'[^']*'", "'...'"),
    (r'"[^"]*"', '"..."'),
    (r"\[[^\]]*[0-9][^\]]*\]", "[...]"),
    (r"[0-9][0-9a-fA-F.:_-]*", "N"),
)
"""Variable parts of reasons: quoted text, brackets with numbers, numbers."""
ANSWER = "^HTTP [0-9]{3}"
"""Prefix of a reason that is kept when its variable parts are replaced: an HTTP status."""
KEY = ["place", "revision", "reason"]


@dataclass(frozen=True)
class DeadLetterKind:
    """A group of similar dead letters. ``reason``: the common part; ``example``: a complete reason.
    ``replayed``: number taken by a replay. Times in microseconds since the epoch."""

    place: str
    revision: int
    reason: str
    letters: int
    replayed: int
    first: int
    last: int
    example: str


@dataclass
class Summary:
    """Counts. ``files``, ``bytes``: with selected dead letters. ``damaged``: reasons by file."""

    letters: int = 0
    replayed: int = 0
    files: int = 0
    bytes: int = 0
    kinds: list[DeadLetterKind] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)


def summarize(
    directory: DeadLetterDirectory,
    files: list[DeadLetterFile],
    selection: Selection,
    replays: Replays,
    on_progress: OnProgress = lambda _files: None,
) -> Summary:
    """Count dead letters by kind, most frequent first. Raises UserError, UnavailableError."""

    def work(file: DeadLetterFile) -> _Counter:
        counter = _Counter()
        for _, batch in open_dead_letters(directory, file).dead(selection):
            kept = batch.filter(selection.mask(batch))
            counter.add(_counted(kept, taken_mask(replays.taken(file), kept)))
        return counter

    summary, counter = Summary(), _Counter()
    for file, counts in each(files, work, summary.damaged, on_progress):
        if counts:
            summary.files += 1
            summary.bytes += file.bytes
            counter.merge(counts)
    summary.kinds = sorted(counter.close(), key=lambda kind: (-kind.letters, kind.place))
    summary.letters = sum(kind.letters for kind in summary.kinds)
    summary.replayed = sum(kind.replayed for kind in summary.kinds)
    return summary


class _Counter:
    """Counter that groups many dead letters at once, those of small files together."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._fresh_rows = 0

    def __bool__(self) -> bool:
        return any(table.num_rows for table in self._tables)

    def add(self, counted: pa.Table) -> None:
        self._tables.append(counted)
        self._fresh_rows += counted.num_rows
        if self._fresh_rows >= COUNTED_AT_ONCE:
            self._group()

    def merge(self, other: _Counter) -> None:
        for table in other._tables:
            self.add(table)

    def close(self) -> list[DeadLetterKind]:
        if not self:
            return []
        self._group()
        return [DeadLetterKind(**row) for row in self._tables[0].to_pylist()]

    def _group(self) -> None:
        table = _grouped(pa.concat_tables(self._tables))
        if table.num_rows > MOST_KINDS:
            reasons = table["reason"].to_pylist()[:MOST_KINDS]
            others = [OTHER] * (table.num_rows - MOST_KINDS)
            index = table.schema.get_field_index("reason")
            table = _grouped(table.set_column(index, "reason", [[*reasons, *others]]))
        self._tables, self._fresh_rows = [table], 0


def _counted(letters: pa.RecordBatch, replayed: pa.BooleanArray) -> pa.Table:
    """Return a row for each dead letter, with the fields of DeadLetterKind."""
    reasons = pc.fill_null(letters["dead_reason"], "")
    times = pc.fill_null(letters["dead_time"].cast(pa.int64()), 0)
    return pa.table(
        {
            "place": pc.fill_null(letters["dead_place"], ""),
            "revision": pc.fill_null(letters["dead_revision"], 0),
            "reason": _shared(reasons),
            "letters": pa.repeat(pa.scalar(1, pa.int64()), len(letters)),
            "replayed": replayed.cast(pa.int64()),
            "first": times,
            "last": times,
            "example": reasons,
        }
    )


def _grouped(counted: pa.Table) -> pa.Table:
    """Return one row for each kind, in the order of the kinds' first rows."""
    how = {"letters": "sum", "replayed": "sum", "first": "min", "last": "max", "example": "first"}
    groups = counted.group_by(KEY, use_threads=False).aggregate(list(how.items()))
    columns = [*KEY, *(f"{name}_{function}" for name, function in how.items())]
    return groups.select(columns).rename_columns(counted.schema.names).cast(counted.schema)


def _shared(reasons: pa.StringArray) -> pa.StringArray:
    encoded = reasons.dictionary_encode()
    answers = pc.match_substring_regex(encoded.dictionary, ANSWER)
    status = pc.if_else(answers, pc.utf8_slice_codeunits(encoded.dictionary, 0, 8), "")
    shared = pc.if_else(answers, pc.utf8_slice_codeunits(encoded.dictionary, 8), encoded.dictionary)
    for pattern, shown in _VALUES:
        shared = pc.replace_substring_regex(shared, pattern, shown)
    whole = pc.binary_join_element_wise(status, shared, "")
    return pc.utf8_slice_codeunits(whole, 0, REASON_CHARACTERS).take(encoded.indices)


CLOCKS_SECONDS = 3_600.0
"""Maximum clock skew: a dead letter's time is at most this much later than its file's."""


@dataclass(frozen=True, order=True)
class _DeadLetter:
    moment: int
    path: str
    row: int


def newest(
    directory: DeadLetterDirectory,
    files: list[DeadLetterFile],
    selection: Selection,
    limit: int,
    on_progress: OnProgress = lambda _files: None,
) -> tuple[list[bytes], dict[str, str]]:
    """Return up to ``limit`` dead letters as JSON, newest first, and the damaged files. Raises
    UserError, UnavailableError."""
    by_path = {file.path: file for file in files}
    kept: list[_DeadLetter] = []
    damaged: dict[str, str] = {}

    def work(file: DeadLetterFile) -> list[_DeadLetter]:
        since = kept[0].moment if len(kept) == limit else selection.since
        younger, newer = replace(selection, since=since), []
        for first, batch in open_dead_letters(directory, file).dead(younger):
            moments = batch["dead_time"].cast(pa.int64()).fill_null(0).to_numpy()
            rows = np.flatnonzero(younger.mask(batch).to_numpy(zero_copy_only=False))
            for row in rows[np.argsort(-moments[rows], kind="stable")[:limit]]:
                newer.append(_DeadLetter(int(moments[row]), file.path, first + int(row)))
        return newer

    by_age = sorted(files, key=lambda file: -file.modified)
    with closing(each(by_age, work, damaged, on_progress)) as results:
        for file, letters in results:
            kept = heapq.nlargest(limit, [*kept, *letters])[::-1]
            if len(kept) == limit and kept[0].moment > (file.modified + CLOCKS_SECONDS) * 1e6:
                break
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for letter in kept:
        rows[letter.path].append(letter.row)
    texts: dict[str, dict[int, bytes]] = {}
    for file, shown in each(
        [by_path[path] for path in rows],
        lambda file: open_dead_letters(directory, file).shown(rows[file.path]),
        damaged,
    ):
        texts[file.path] = shown
    newest_first = (letter for letter in reversed(kept) if letter.path in texts)
    return [texts[letter.path][letter.row] for letter in newest_first], damaged
