"""Counts dead letters by place, revision and the common part of their reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.dead_letters.choice import Choice
from flumeng.connectors.dead_letters.directory import LetterDirectory, LetterFile, Tell, each
from flumeng.connectors.dead_letters.reading import open_letters
from flumeng.connectors.dead_letters.replay_lists import Replays, taken_mask

REASON_CHARACTERS = 120
COUNTED_AT_ONCE = 2_000
MOST_KINDS = 1_000
"""With more kinds reasons are not distinguished."""
OTHER = "(other reasons)"
_VALUES = (
    (r"'[^']*'", "'...'"),
    (r'"[^"]*"', '"..."'),
    (r"\[[^\]]*[0-9][^\]]*\]", "[...]"),
    (r"[0-9][0-9a-fA-F.:_-]*", "N"),
)
"""Parts of reasons that vary by event: quoted text, brackets with numbers, numbers."""
ANSWER = "^HTTP [0-9]{3}"
"""This beginning does not vary."""
Key = tuple[str, int, str]


@dataclass(frozen=True)
class LetterKind:
    """``reason`` is the common part, ``example`` a whole one. ``replayed``: how many were taken by
    a replay. Times in microseconds since the epoch."""

    place: str
    revision: int
    reason: str
    letters: int
    replayed: int
    first: int
    last: int
    example: str

    def with_(self, other: LetterKind) -> LetterKind:
        return replace(
            self,
            letters=self.letters + other.letters,
            replayed=self.replayed + other.replayed,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
        )


@dataclass
class Summary:
    """``files`` and ``bytes``: of the files with chosen letters. ``damaged``: unreadable files,
    with why."""

    letters: int = 0
    replayed: int = 0
    files: int = 0
    bytes: int = 0
    kinds: list[LetterKind] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)


def summarize(
    directory: LetterDirectory,
    files: list[LetterFile],
    choice: Choice,
    replays: Replays,
    tell: Tell = lambda _files: None,
) -> Summary:
    """The most frequent kind first. Raises UserError, UnavailableError."""

    def work(file: LetterFile) -> _Counter:
        counter = _Counter()
        for _, batch in open_letters(directory, file).dead(choice):
            kept = batch.filter(choice.mask(batch))
            counter.add([_counted(kept, taken_mask(replays.taken(file), kept))])
        return counter

    summary, counter = Summary(), _Counter()
    for file, found in each(files, work, summary.damaged, tell):
        if found:
            summary.files += 1
            summary.bytes += file.bytes
            counter.merge(found)
    summary.kinds = sorted(counter.close(), key=lambda kind: (-kind.letters, kind.place))
    summary.letters = sum(kind.letters for kind in summary.kinds)
    summary.replayed = sum(kind.replayed for kind in summary.kinds)
    return summary


class _Counter:
    """Counts many letters at once, those of small files together."""

    def __init__(self) -> None:
        self._kinds: dict[Key, LetterKind] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def __bool__(self) -> bool:
        return bool(self._kinds or self._rows)

    def add(self, letters: Sequence[pa.RecordBatch]) -> None:
        self._waiting += letters
        self._rows += sum(batch.num_rows for batch in letters)
        if self._rows >= COUNTED_AT_ONCE:
            self._count()

    def merge(self, other: _Counter) -> None:
        _add(self._kinds, other._kinds.values())
        self.add(other._waiting)

    def close(self) -> Iterable[LetterKind]:
        self._count()
        return self._kinds.values()

    def _count(self) -> None:
        if self._rows:
            _add(self._kinds, _kinds(pa.Table.from_batches(self._waiting).combine_chunks()))
        self._waiting, self._rows = [], 0


def _counted(letters: pa.RecordBatch, replayed: pa.BooleanArray) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "place": pc.fill_null(letters["dead_place"], ""),
            "revision": pc.fill_null(letters["dead_revision"], 0),
            "example": letters["dead_reason"],
            "time": pc.fill_null(letters["dead_time"].cast(pa.int64()), 0),
            "replayed": replayed.cast(pa.int64()),
        }
    )


def _kinds(letters: pa.Table) -> list[LetterKind]:
    (reasons,) = pc.fill_null(letters["example"], "").chunks
    table = letters.append_column("reason", _shared(reasons))
    grouped = table.group_by(["place", "revision", "reason"], use_threads=False).aggregate(
        [
            ("example", "first"),
            ("time", "min"),
            ("time", "max"),
            ("replayed", "sum"),
            ("place", "count"),
        ]
    )
    return [
        LetterKind(
            row["place"],
            row["revision"],
            row["reason"],
            row["place_count"],
            row["replayed_sum"],
            row["time_min"],
            row["time_max"],
            row["example_first"] or "",
        )
        for row in grouped.to_pylist()
    ]


def _shared(reasons: pa.StringArray) -> pa.StringArray:
    encoded = reasons.dictionary_encode()
    answers = pc.match_substring_regex(encoded.dictionary, ANSWER)
    status = pc.if_else(answers, pc.utf8_slice_codeunits(encoded.dictionary, 0, 8), "")
    shared = pc.if_else(answers, pc.utf8_slice_codeunits(encoded.dictionary, 8), encoded.dictionary)
    for pattern, shown in _VALUES:
        shared = pc.replace_substring_regex(shared, pattern, shown)
    whole = pc.binary_join_element_wise(status, shared, "")
    return pc.utf8_slice_codeunits(whole, 0, REASON_CHARACTERS).take(encoded.indices)


def _add(kinds: dict[Key, LetterKind], more: Iterable[LetterKind]) -> None:
    for kind in more:
        key = (kind.place, kind.revision, kind.reason)
        added = kind
        if key not in kinds and len(kinds) >= MOST_KINDS:
            key, added = (kind.place, kind.revision, OTHER), replace(kind, reason=OTHER)
        kinds[key] = kinds[key].with_(added) if key in kinds else added
