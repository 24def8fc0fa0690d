"""Stored answers: ranges, files, and the executors' reader. An offset combines a due time's number
and a row. An answer is valid once ZooKeeper has its unique file name, stored in one transaction
with the next state."""

from __future__ import annotations

import json
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from flumeng.config.component import Component
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.control.snapshot import items, queues
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform import secrets
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError
from flumeng.platform.file_store import below, open_store, store_errors
from flumeng.platform.memory import require_memory
from flumeng.platform.options.patterns import SECRET, split_query
from flumeng.platform.remote_store import Resolve
from flumeng.platform.scrubbing import Secret
from zkschema.records import Polls

SCHEMA = pa.schema([("body", pa.binary())])
GROUP_ROWS = 1 << 16
READ_ROWS = 1 << 14
NUMBER_DIGITS = 10
COLUMNS = ("numbers", "due", "positions", "rows", "files")


@dataclass(frozen=True)
class KeptAnswer:
    """Stored rows of the answer to due time ``number``, from row ``position`` on, in ``file``.
    ``due_us``: microseconds since the epoch. The fields are ``COLUMNS`` of the ZooKeeper record."""

    number: int
    due_us: int
    position: int
    rows: int
    file: str

    @property
    def start(self) -> int:
        return items.offset_of(self.number, self.position)

    @property
    def end(self) -> int:
        return items.offset_of(self.number, self.position + self.rows)


def kept(polls: Polls) -> list[KeptAnswer]:
    """Return the record's answers, which are stored sorted. Raises CorruptError for columns of
    different lengths."""
    columns = [getattr(polls, name) for name in COLUMNS]
    if len({*map(len, columns)}) > 1:
        raise CorruptError("the lists of answers in the znode `polls` differ in length")
    return [KeptAnswer(*fields) for fields in zip(*columns, strict=True)]


def columns_of(answers: Sequence[KeptAnswer]) -> dict[str, Any]:
    rows = [astuple(answer) for answer in answers]
    return {name: tuple(row[index] for row in rows) for index, name in enumerate(COLUMNS)}


def encode(answers: Sequence[KeptAnswer]) -> str:
    return json.dumps([[*astuple(answer)] for answer in answers], separators=(",", ":"))


def decode(address: str) -> list[KeptAnswer]:
    try:
        return [KeptAnswer(*fields) for fields in json.loads(address)]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptError(f"this is not a list of kept answers: {address[:200]}") from error


class AnswerContents:
    """``Contents`` of stored answers. ``answers`` are sorted by offset."""

    def __init__(self, answers: Sequence[KeptAnswer]) -> None:
        self._answers = answers

    def events(self, start: int, end: int) -> int:
        return max(1, self._below(end) - self._below(start)) if start < end else 0

    def cut(self, start: int, end: int, events: int) -> int:
        target = self._below(start) + max(1, events)
        index = bisect_right(self._borders, target) - 1
        if index >= len(self._answers):
            return end
        return min(end, self._answers[index].start + target - self._borders[index])

    def address(self, start: int, end: int) -> str:
        return encode([own for own in self._answers if own.start < end and own.end > start])

    @cached_property
    def _borders(self) -> list[int]:
        return list(accumulate((answer.rows for answer in self._answers), initial=0))

    def _below(self, offset: int) -> int:
        index = bisect_right(self._answers, offset, key=lambda answer: answer.start) - 1
        if index < 0:
            return 0
        answer = self._answers[index]
        return self._borders[index] + min(offset - answer.start, answer.rows)


class AnswerFiles:
    """A queue's answer files; ``resolve`` looks up secrets. Raises UserError, UnavailableError."""

    def __init__(
        self, location: str, flow: str, queue: str, resolve: Resolve = secrets.resolve
    ) -> None:
        directory = below(location, f"_answers.{flow}.{queue}")
        self._store, self._directory = open_store(directory, resolve)
        self._name = split_query(directory)[0]
        self.queue = queue
        self.path = split_query(location)[0]

    @contextmanager
    def new(self, number: int) -> Iterator[AnswerFile]:
        """Create a file for the answer to this due time. When the context ends it is synced; after
        an error it is deleted."""
        name = f"{number:0{NUMBER_DIGITS}d}.{uuid.uuid4().hex}.parquet"
        path = f"{self._directory}/{name}"
        with store_errors(self._store, self._name):
            self._store.make_directory(self._directory)
            with self._store.open_output(path) as output:
                writer = pq.ParquetWriter(
                    output, SCHEMA, compression="zstd", write_page_checksum=True
                )
                try:
                    yield AnswerFile(name, writer)
                except BaseException:
                    writer.close()
                    with suppress(OSError):
                        self._store.files.delete_file(path)
                    raise
                writer.close()
            self._store.sync(path)
            self._store.sync(self._directory)

    def read(self, name: str, start: int, end: int) -> Iterator[pa.BinaryArray]:
        """Yield the bodies of rows [start, end), in non-empty arrays. Raises CorruptError for a
        missing or damaged file."""
        with store_errors(self._store, self._name), self._damaged(name):
            opened = self._store.files.open_input_file(f"{self._directory}/{name}")
            with pq.ParquetFile(opened, page_checksum_verification=True) as file:
                first = 0
                for number in range(file.num_row_groups):
                    last = first + file.metadata.row_group(number).num_rows
                    if last > start and first < end:
                        row = first
                        for batch in file.iter_batches(READ_ROWS, row_groups=[number]):
                            part = batch[max(start - row, 0) : max(end - row, 0)]
                            row += batch.num_rows
                            if part.num_rows:
                                yield part.column(0)
                    first = last
                if first < end:
                    raise CorruptError(f"{self._name}/{name} has {first} rows, expected {end}")

    def remove_below(self, number: int) -> None:
        """Remove files of due times below ``number``, also those that ZooKeeper never recorded."""
        with store_errors(self._store, self._name):
            selector = fs.FileSelector(self._directory, allow_not_found=True)
            for info in self._store.files.get_file_info(selector):
                own, _, _ = info.base_name.partition(".")
                if own.isdigit() and int(own) < number:
                    with suppress(FileNotFoundError):
                        self._store.files.delete_file(info.path)

    @contextmanager
    def _damaged(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise CorruptError(f"{self._name}/{name} no longer exists") from error
        except MemoryError:  # also one of Arrow's exceptions
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            is_store = isinstance(error, OSError) and (error.errno or "AWS Error" in str(error))
            if is_store:
                raise
            require_memory(error)
            raise CorruptError(f"{self._name}/{name} is damaged: {error}") from error


class AnswerFile:
    def __init__(self, name: str, writer: pq.ParquetWriter) -> None:
        self.name = name
        self.rows = 0
        self._writer = writer

    def append(self, bodies: pa.BinaryArray) -> None:
        if len(bodies):
            table = pa.table([bodies.cast(pa.binary())], schema=SCHEMA)
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
            self.rows += len(bodies)


@dataclass(frozen=True)
class PollsReader:
    """``Reader`` of stored answers; ``encode`` makes its addresses. ``resolved``: the secrets in
    ``location``, the directory of the answers."""

    flow: str
    source: str
    location: str
    resolved: tuple[tuple[str, Secret], ...] = ()
    schema: pa.Schema = READ_SCHEMA
    modules: frozenset[str] = frozenset({"pyarrow.parquet"})

    @classmethod
    def of(cls, flow: str, part: Component[Any]) -> PollsReader:
        """Return the reader of the source ``part``. Raises UserError when a secret is missing."""
        where = part.options.answers
        given = where.credentials.given if where.credentials else {}
        references = filter(SECRET.fullmatch, given.values())
        resolved = tuple((reference, secrets.resolve(reference)) for reference in references)
        return cls(flow, part.name, where.location, resolved)

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Yield events. Raises UnreadableError with the offset, which callers cannot count: there
        are unused offsets between answers."""
        lane = queues.lane_of(piece.partition)
        assert lane is not None, piece.partition
        offset = piece.start
        try:
            resolve = dict(self.resolved).__getitem__
            files = AnswerFiles(self.location, self.flow, lane[1], resolve)
            for answer in decode(address):
                first = max(0, piece.start - answer.start)
                last = min(answer.rows, piece.end - answer.start)
                if first < last:
                    offset = answer.start + first
                    for bodies in files.read(answer.file, first, last):
                        yield self._events(piece, answer, offset, bodies)
                        offset += len(bodies)
        except FlumengError as error:
            damaged = not isinstance(error, UnavailableError)
            raise UnreadableError(piece.partition, offset, str(error), damaged=damaged) from error

    def _events(
        self, piece: Range, answer: KeptAnswer, offset: int, bodies: pa.BinaryArray
    ) -> pa.RecordBatch:
        due = datetime.fromtimestamp(answer.due_us / 1e6, UTC).isoformat()
        same = {
            "ts": answer.due_us,
            "host": "",
            "attrs": {"source": self.source, "due": due},
            "journal": piece.partition,
            "replayed": piece.replayed,
        }
        columns = {
            name: pa.repeat(pa.scalar(value, READ_SCHEMA.field(name).type), len(bodies))
            for name, value in same.items()
        }
        columns["body"] = bodies
        columns["seq"] = pa.array(np.arange(offset, offset + len(bodies)))
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in READ_SCHEMA.names], schema=READ_SCHEMA
        )
