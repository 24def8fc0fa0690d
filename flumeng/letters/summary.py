"""How many dead letters there are of each kind: by place, revision and what their reasons share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.errors import CorruptError
from flumeng.letters.choice import Choice
from flumeng.letters.place import LetterFile, LetterPlace, each
from flumeng.letters.reading import open_letters
from flumeng.letters.replays import Replays, taken_mask

REASON_CHARACTERS = 120
MOST_KINDS = 1_000
"""Of more kinds the reasons are not told apart."""
OTHER = "(other reasons)"
_VALUES = (
    (r"'[^']*'", "'...'"),
    (r'"[^"]*"', '"..."'),
    (r"\[[^\]]*[0-9][^\]]*\]", "[...]"),
    (r"[0-9][0-9a-fA-F.:_-]*", "N"),
)
"""What of a reason is of one event: what is quoted, brackets with numbers, numbers."""
ANSWER = "^HTTP [0-9]{3}"
"""What an answer begins with is of many."""
Key = tuple[str, int, str]


@dataclass(frozen=True)
class LetterKind:
    """``reason`` is what the reasons of its letters share, ``example`` one of them. ``replayed``:
    how many of them a replay has taken. Times in microseconds since the epoch."""

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
    """``files`` and ``bytes`` are of the files that hold what was asked for. ``damaged``: what
    could not be read, and why."""

    letters: int = 0
    replayed: int = 0
    files: int = 0
    bytes: int = 0
    kinds: list[LetterKind] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)


def summarize(
    place: LetterPlace, files: list[LetterFile], choice: Choice, replays: Replays
) -> Summary:
    """The most frequent kind first. Raises UserError, UnavailableError."""

    def work(file: LetterFile) -> dict[Key, LetterKind]:
        found: dict[Key, LetterKind] = {}
        for batch in open_letters(place, file).dead(choice):
            kept = batch.filter(choice.mask(batch))
            if kept.num_rows:
                _add(found, _kinds(kept, taken_mask(replays.taken(file), kept)))
        return found

    summary, kinds = Summary(), dict[Key, LetterKind]()
    for file, found in each(files, work):
        if isinstance(found, CorruptError):
            summary.damaged[file.path] = str(found)
        elif found:
            summary.files += 1
            summary.bytes += file.bytes
            _add(kinds, found.values())
    summary.kinds = sorted(kinds.values(), key=lambda kind: (-kind.letters, kind.place))
    summary.letters = sum(kind.letters for kind in summary.kinds)
    summary.replayed = sum(kind.replayed for kind in summary.kinds)
    return summary


def _kinds(letters: pa.RecordBatch, replayed: pa.BooleanArray) -> list[LetterKind]:
    table = pa.table(
        {
            "place": pc.fill_null(letters["dead_place"], ""),
            "revision": pc.fill_null(letters["dead_revision"], 0),
            "reason": _shared(pc.fill_null(letters["dead_reason"], "")),
            "example": letters["dead_reason"],
            "time": pc.fill_null(letters["dead_time"].cast(pa.int64()), 0),
            "replayed": replayed.cast(pa.int64()),
        }
    )
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
