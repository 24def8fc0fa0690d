"""Lists of the dead letters taken by replays, one list per replay, below ``ROOT/_replays/FLOW``. A
list is written before the replay's flow. It counts once that flow exists or has read from it (mark
``.read``). Mark ``.done``: all its dead letters are in the sinks. Lists hold selections instead of
row numbers: after a purge they still show which of the remaining dead letters were taken."""

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

from flumeng.connectors.dead_letters.directory import (
    DeadLetterDirectory,
    DeadLetterFile,
    OnProgress,
    each,
)
from flumeng.connectors.dead_letters.files import Letters, open_dead_letters
from flumeng.connectors.dead_letters.options import MOST_PARTS
from flumeng.connectors.dead_letters.selection import Selection
from flumeng.events.schema import EVENT_SCHEMA

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
"""Per file: name below the root, bytes and rows, number of selected rows, and indices of earlier
selections that took some of its dead letters."""


@dataclass(frozen=True)
class ListedFile:
    name: str
    bytes: int
    rows: int
    chosen: int
    taken: tuple[Selection, ...] = ()

    def mask(self, selection: Selection, letters: pa.RecordBatch) -> pa.BooleanArray:
        mask = selection.mask(letters)
        for earlier in self.taken:
            mask = pc.and_not(mask, earlier.mask(letters))
        return mask


@dataclass(frozen=True)
class ReplayList:
    """The list of one replay. ``name`` is never reused. ``parts`` are read independently."""

    name: str
    selection: Selection
    parts: tuple[tuple[ListedFile, ...], ...]

    @classmethod
    def of(cls, name: str, selection: Selection, files: Iterable[ListedFile]) -> ReplayList:
        """Return a list of ``files`` (at least one), split into parts of about equal size."""
        by_name = sorted(files, key=lambda file: file.name)
        rows = sum(file.rows for file in by_name)
        count = max(1, min(MOST_PARTS, len(by_name), rows // ROWS_IN_PART))
        parts: list[list[ListedFile]] = [[] for _ in range(count)]
        least = [(0, number) for number in range(count)]
        for file in sorted(by_name, key=lambda file: -file.rows):
            load, number = heapq.heappop(least)
            parts[number].append(file)
            heapq.heappush(least, (load + file.rows, number))
        return cls(name, selection, tuple(map(tuple, parts)))

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(sum(file.rows for file in part) for part in self.parts)

    @property
    def files(self) -> Iterator[ListedFile]:
        return (file for part in self.parts for file in part)

    @property
    def chosen(self) -> int:
        return sum(file.chosen for file in self.files)


def path_of(directory: DeadLetterDirectory, flow: str, name: str, kind: str) -> str:
    return directory.path_of(DIRECTORY, flow, f"{name}.{kind}")


def write(directory: DeadLetterDirectory, flow: str, listed: ReplayList) -> None:
    """Write the list; it is durable on return. Raises UserError, UnavailableError."""
    selections: dict[Selection, int] = {}
    tables = []
    for part in listed.parts:
        rows = [
            {
                "name": file.name,
                "bytes": file.bytes,
                "rows": file.rows,
                "chosen": file.chosen,
                "taken": [selections.setdefault(taken, len(selections)) for taken in file.taken],
            }
            for file in part
        ]
        tables.append(pa.Table.from_pylist(rows, FILES))
    metadata = {
        "choice": str(listed.selection),
        "earlier": json.dumps([str(selection) for selection in selections]),
    }
    path = path_of(directory, flow, listed.name, LIST)
    parent = path.rpartition("/")[0]
    with directory.errors(path):
        directory.store.make_directory(parent)
        output = directory.store.open_output(path)
        writer = pq.ParquetWriter(output, FILES.with_metadata(metadata), compression="zstd")
        for table in tables:
            writer.write_table(table.replace_schema_metadata(metadata), row_group_size=len(table))
        writer.close()
        output.close()
        directory.store.sync(path)
        directory.store.sync(parent)


def mark(directory: DeadLetterDirectory, flow: str, name: str, kind: str) -> None:
    """Write the mark of this kind; durable, idempotent. Raises UserError, UnavailableError."""
    path = path_of(directory, flow, name, kind)
    with directory.errors(path):
        if not directory.store.exists(path):
            directory.store.open_output(path).close()
            directory.store.sync(path)
            directory.store.sync(path.rpartition("/")[0])


def remove(directory: DeadLetterDirectory, flow: str, name: str) -> None:
    """Remove the list, then its marks, which mean nothing without the list."""
    for kind in (LIST, READ, DONE):
        path = path_of(directory, flow, name, kind)
        with directory.errors(path):
            if directory.store.exists(path):
                directory.store.files.delete_file(path)


def read_part(
    directory: DeadLetterDirectory, flow: str, name: str, number: int
) -> tuple[Selection, tuple[ListedFile, ...]]:
    """Read one part of a list. Raises CorruptError, GoneError, UserError, UnavailableError."""
    path = path_of(directory, flow, name, LIST)
    with directory.errors(path), pq.ParquetFile(path, filesystem=directory.store.files) as file:
        return _listed(file, [number])


def _listed(
    file: pq.ParquetFile, groups: Sequence[int]
) -> tuple[Selection, tuple[ListedFile, ...]]:
    metadata = file.schema_arrow.metadata
    earlier = [Selection.parse(text) for text in json.loads(metadata[b"earlier"])]
    files = tuple(
        ListedFile(**{**row, "taken": tuple(earlier[index] for index in row["taken"])})
        for row in file.read_row_groups(groups).to_pylist()
    )
    return Selection.parse(metadata[b"choice"].decode()), files


@dataclass(frozen=True)
class Replays:
    """A flow's replay lists that count, each with its selection and files. ``done``: lists whose
    dead letters are all in the sinks. ``unused``: lists that do not count."""

    lists: Mapping[str, tuple[Selection, tuple[str, ...]]] = field(default_factory=dict)
    done: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()

    @cached_property
    def by_file(self) -> Mapping[str, tuple[Selection, ...]]:
        by_name: defaultdict[str, list[Selection]] = defaultdict(list)
        for selection, names in self.lists.values():
            for name in names:
                by_name[name].append(selection)
        return {name: tuple(dict.fromkeys(selections)) for name, selections in by_name.items()}

    def taken(self, file: DeadLetterFile) -> tuple[Selection, ...]:
        return self.by_file.get(file.name, ())

    def only(self, names: Collection[str]) -> Replays:
        return Replays({name: self.lists[name] for name in self.lists if name in names}, self.done)


def replays(directory: DeadLetterDirectory, flow: str, current: Collection[str]) -> Replays:
    """Read the flow's lists. ``current``: lists of existing flows. Raises CorruptError, UserError,
    UnavailableError."""
    path = directory.path_of(DIRECTORY, flow)
    with directory.errors(path):
        infos = directory.store.files.get_file_info(fs.FileSelector(path, allow_not_found=True))
    there = {info.base_name for info in infos}
    lists, unused = {}, set()
    suffix = f".{LIST}"
    for name in sorted(file.removesuffix(suffix) for file in there if file.endswith(suffix)):
        if name not in current and f"{name}.{READ}" not in there and f"{name}.{DONE}" not in there:
            unused.add(name)
            continue
        path = path_of(directory, flow, name, LIST)
        with directory.errors(path), pq.ParquetFile(path, filesystem=directory.store.files) as file:
            names = file.read(columns=["name"])["name"].to_pylist()
            selection = Selection.parse(file.schema_arrow.metadata[b"choice"].decode())
            lists[name] = selection, tuple(names)
    done = frozenset(name for name in lists if f"{name}.{DONE}" in there)
    return Replays(lists, done, frozenset(unused))


def forget(
    directory: DeadLetterDirectory, flow: str, replays: Replays, current: Collection[str]
) -> None:
    """Remove finished lists none of whose files exists any more. ``current``: lists of existing
    flows, which stay: without the mark such a flow would count as unfinished."""
    there = {file.name for file in directory.files()}
    for name in replays.done.difference(current):
        if there.isdisjoint(replays.lists[name][1]):
            remove(directory, flow, name)


def taken_mask(taken: Sequence[Selection], letters: pa.RecordBatch) -> pa.BooleanArray:
    """Return a mask of the ``letters`` that one of these selections selects."""
    mask = pa.repeat(pa.scalar(value=False), letters.num_rows)
    for selection in taken:
        mask = pc.or_(mask, selection.mask(letters))
    return mask


BODY = pa.schema([EVENT_SCHEMA.field("body")])


@dataclass
class Listing:
    """``files`` that have dead letters to take. ``replayed``: number of selected ones taken before;
    ``bodiless``: number of the others in files in which no row has a body, which are left out."""

    files: list[ListedFile] = field(default_factory=list)
    replayed: int = 0
    bodiless: int = 0
    places: dict[str, int] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def chosen(self) -> int:
        return sum(file.chosen for file in self.files)


def list_dead_letters(
    directory: DeadLetterDirectory,
    files: list[DeadLetterFile],
    selection: Selection,
    replays: Replays,
    on_progress: OnProgress = lambda _files: None,
) -> Listing:
    """List selected dead letters not taken before. Raises UserError, UnavailableError."""

    def work(file: DeadLetterFile) -> tuple[ListedFile, int, dict[str, int], bool]:
        letters = open_dead_letters(directory, file)
        taken = replays.taken(file)
        rows = chosen = meant = 0
        places: dict[str, int] = {}
        for _, batch in letters.dead(Selection()):
            rows += batch.num_rows
            meant += selection.mask(batch).true_count
            mask = ListedFile("", 0, 0, 0, taken).mask(selection, batch)
            chosen += mask.true_count
            for counted in pc.value_counts(batch["dead_place"].filter(mask)).to_pylist():
                name = counted["values"] or ""
                places[name] = places.get(name, 0) + counted["counts"]
        listed = ListedFile(file.name, file.bytes, rows, chosen, taken)
        return listed, meant - chosen, places, chosen > 0 and _lacks_bodies(letters)

    listing = Listing()
    for _, (listed, replayed, places, bodiless) in each(files, work, listing.damaged, on_progress):
        listing.replayed += replayed
        if bodiless:
            listing.bodiless += listed.chosen
        elif listed.chosen:
            listing.files.append(listed)
            for name, count in places.items():
                listing.places[name] = listing.places.get(name, 0) + count
    return listing


def _lacks_bodies(letters: Letters) -> bool:
    return all(batch["body"].null_count == batch.num_rows for batch in letters.read(BODY))
