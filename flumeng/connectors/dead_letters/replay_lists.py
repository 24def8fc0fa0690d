"""Lists of the letters that replays have taken, one a replay, beside the letters.

A list lies in ``ROOT/_replays/FLOW``, which readers of the lake ignore. It is written before the
replay's flow is made, and counts once that flow exists or has read from it (mark ``.read``). The
mark ``.done`` says that all its letters are in the flow's sinks.

Letters in a partly purged file stay taken: a list has choices, not row numbers.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from flumeng.connectors.dead_letters.choice import Choice
from flumeng.connectors.dead_letters.directory import LetterDirectory, LetterFile
from flumeng.connectors.dead_letters.options import MOST_PARTS
from flumeng.platform.errors import CorruptError

DIRECTORY = "_replays"
READ, DONE, LIST = "read", "done", "parquet"
ROWS_IN_PART = 20_000
FILES = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("chosen", pa.int64()),
        pa.field("taken", pa.list_(pa.int32())),
    ]
)
"""Of each file: its name below the root, its bytes and rows, how many rows are chosen, and which of
the earlier choices had taken letters of it."""


@dataclass(frozen=True)
class ListedFile:
    name: str
    bytes: int
    rows: int
    chosen: int
    taken: tuple[Choice, ...] = ()

    def mask(self, choice: Choice, letters: pa.RecordBatch) -> pa.BooleanArray:
        """Which of its ``letters`` a replay of ``choice`` takes."""
        found = choice.mask(letters)
        for one in self.taken:
            found = pc.and_not(found, one.mask(letters))
        return found


@dataclass(frozen=True)
class ReplayList:
    """``name`` is never used again. ``parts`` are read independently."""

    name: str
    choice: Choice
    parts: tuple[tuple[ListedFile, ...], ...]

    @classmethod
    def of(cls, name: str, choice: Choice, files: Iterable[ListedFile]) -> ReplayList:
        """In parts of about equal size; at least one file."""
        known = sorted(files, key=lambda file: file.name)
        rows = sum(file.rows for file in known)
        count = max(1, min(MOST_PARTS, len(known), rows // ROWS_IN_PART))
        parts: list[list[ListedFile]] = [[] for _ in range(count)]
        least = [(0, number) for number in range(count)]
        for file in sorted(known, key=lambda file: -file.rows):
            load, number = heapq.heappop(least)
            parts[number].append(file)
            heapq.heappush(least, (load + file.rows, number))
        return cls(name, choice, tuple(map(tuple, parts)))

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(sum(file.rows for file in part) for part in self.parts)

    @property
    def files(self) -> Iterator[ListedFile]:
        return (file for part in self.parts for file in part)

    @property
    def chosen(self) -> int:
        return sum(file.chosen for file in self.files)


def path_of(directory: LetterDirectory, flow: str, name: str, kind: str) -> str:
    return directory.path_of(DIRECTORY, flow, f"{name}.{kind}")


def write(directory: LetterDirectory, flow: str, listed: ReplayList) -> None:
    """Durable when it returns. Raises UserError, UnavailableError."""
    choices: dict[Choice, int] = {}
    tables = []
    for part in listed.parts:
        rows = [
            {
                "name": file.name,
                "bytes": file.bytes,
                "rows": file.rows,
                "chosen": file.chosen,
                "taken": [choices.setdefault(one, len(choices)) for one in file.taken],
            }
            for file in part
        ]
        tables.append(pa.Table.from_pylist(rows, FILES))
    said = {
        "choice": str(listed.choice),
        "earlier": json.dumps([str(one) for one in choices]),
    }
    path = path_of(directory, flow, listed.name, LIST)
    parent = path.rpartition("/")[0]
    with directory.errors(path):
        directory.store.make_directory(parent)
        output = directory.store.open_output(path)
        writer = pq.ParquetWriter(output, FILES.with_metadata(said), compression="zstd")
        for table in tables:
            writer.write_table(table.replace_schema_metadata(said), row_group_size=len(table))
        writer.close()
        output.close()
        directory.store.sync(path)
        directory.store.sync(parent)


def mark(directory: LetterDirectory, flow: str, name: str, kind: str) -> None:
    """Durable, idempotent. Raises UserError, UnavailableError."""
    path = path_of(directory, flow, name, kind)
    with directory.errors(path):
        if not directory.store.exists(path):
            directory.store.open_output(path).close()
            directory.store.sync(path)
            directory.store.sync(path.rpartition("/")[0])


def remove(directory: LetterDirectory, flow: str, name: str) -> None:
    """The list first: without it the marks mean nothing."""
    for kind in (LIST, READ, DONE):
        path = path_of(directory, flow, name, kind)
        with directory.errors(path):
            if directory.store.exists(path):
                directory.store.files.delete_file(path)


def read_part(
    directory: LetterDirectory, flow: str, name: str, number: int
) -> tuple[Choice, tuple[ListedFile, ...]]:
    """The choice, and a part of the list. Raises CorruptError, GoneError, UserError,
    UnavailableError."""
    path = path_of(directory, flow, name, LIST)
    with directory.errors(path), pq.ParquetFile(path, filesystem=directory.store.files) as file:
        return _listed(file, [number])


def _listed(file: pq.ParquetFile, groups: Sequence[int]) -> tuple[Choice, tuple[ListedFile, ...]]:
    said = file.schema_arrow.metadata
    earlier = [Choice.parse(text) for text in json.loads(said[b"earlier"])]
    found = tuple(
        ListedFile(**{**row, "taken": tuple(earlier[one] for one in row["taken"])})
        for row in file.read_row_groups(groups).to_pylist()
    )
    return Choice.parse(said[b"choice"].decode()), found


@dataclass(frozen=True)
class Replays:
    """The lists of a flow that count: choice and files of each. ``done``: all letters are in the
    sinks; ``unused``: the list never came to count."""

    lists: Mapping[str, tuple[Choice, tuple[str, ...]]] = field(default_factory=dict)
    done: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()

    @cached_property
    def by_file(self) -> Mapping[str, tuple[Choice, ...]]:
        """The choices that have taken letters of a file."""
        found: defaultdict[str, list[Choice]] = defaultdict(list)
        for choice, names in self.lists.values():
            for name in names:
                found[name].append(choice)
        return {name: tuple(dict.fromkeys(choices)) for name, choices in found.items()}

    def taken(self, file: LetterFile) -> tuple[Choice, ...]:
        return self.by_file.get(file.name, ())

    def only(self, names: Collection[str]) -> Replays:
        return Replays({name: it for name, it in self.lists.items() if name in names}, self.done)


def replays(directory: LetterDirectory, flow: str, current: Collection[str]) -> Replays:
    """``current``: lists whose flows exist now. Raises CorruptError for an unreadable list,
    UserError, UnavailableError."""
    path = directory.path_of(DIRECTORY, flow)
    with directory.errors(path):
        infos = directory.store.files.get_file_info(fs.FileSelector(path, allow_not_found=True))
    there = {info.base_name for info in infos}
    lists, unused = {}, set()
    for name in sorted(it.removesuffix(f".{LIST}") for it in there if it.endswith(f".{LIST}")):
        if name not in current and f"{name}.{READ}" not in there and f"{name}.{DONE}" not in there:
            unused.add(name)
            continue
        path = path_of(directory, flow, name, LIST)
        with directory.errors(path), pq.ParquetFile(path, filesystem=directory.store.files) as file:
            names = file.read(columns=["name"])["name"].to_pylist()
            lists[name] = Choice.parse(file.schema_arrow.metadata[b"choice"].decode()), tuple(names)
    done = frozenset(name for name in lists if f"{name}.{DONE}" in there)
    return Replays(lists, done, frozenset(unused))


def forget(directory: LetterDirectory, flow: str, known: Replays) -> None:
    """Remove the lists that are done and whose files are all gone."""
    there = {file.name for file in directory.files()}
    for name in known.done:
        if there.isdisjoint(known.lists[name][1]):
            remove(directory, flow, name)


def taken_mask(taken: Sequence[Choice], letters: pa.RecordBatch) -> pa.BooleanArray:
    """Which of ``letters`` are in one of these choices."""
    found = pa.repeat(pa.scalar(value=False), letters.num_rows)
    for one in taken:
        found = pc.or_(found, one.mask(letters))
    return found


def require_unchanged(listed: ListedFile, size: int, path: str) -> None:
    """Raises CorruptError when the file was rewritten."""
    if size != listed.bytes:
        raise CorruptError(f"{path} was purged in part after it was listed for the replay")
