"""Answers as files of a store: each is written once, under a name that is never used again.

An answer counts when ZooKeeper has the name of its file, in the transaction that has the state it
leaves. What never got there, and what is acked, is removed by number.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from flumeng.platform import secrets
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.file_store import below, open_store
from flumeng.platform.options.patterns import split_query
from flumeng.platform.remote_store import Resolve

SCHEMA = pa.schema([("body", pa.binary())])
GROUP_ROWS = 1 << 16
READ_ROWS = 1 << 14
NUMBER_DIGITS = 10


class AnswerFiles:
    """Of one queue, below the directory ``location``. Its methods raise UserError for what a person
    has to mend, UnavailableError when it is worth trying again. ``resolve`` looks up the secrets to
    which the location refers."""

    def __init__(
        self, location: str, flow: str, queue: str, resolve: Resolve = secrets.resolve
    ) -> None:
        directory = below(location, f"_answers.{flow}.{queue}")
        self._store, self._directory = open_store(directory, resolve)
        self._name = split_query(directory)[0]
        self.queue = queue
        self.path = split_query(location)[0]
        """Of ``location``, without how its store is reached."""

    @contextmanager
    def new(self, number: int) -> Iterator[AnswerFile]:
        """A file for the answer to this due time; it lasts behind the context."""
        name = f"{number:0{NUMBER_DIGITS}d}.{uuid.uuid4().hex}.parquet"
        path = f"{self._directory}/{name}"
        with self._explained():
            self._store.make_directory(self._directory)
            with self._store.open_output(path) as output:
                writer = pq.ParquetWriter(
                    output, SCHEMA, compression="zstd", write_page_checksum=True
                )
                file = AnswerFile(name, writer)
                try:
                    yield file
                except BaseException:
                    writer.close()
                    with suppress(OSError):
                        self._store.files.delete_file(path)
                    raise
                writer.close()
            self._store.sync(path)
            self._store.sync(self._directory)

    def read(self, name: str, start: int, end: int) -> Iterator[pa.BinaryArray]:
        """The bodies [start, end) in order; no array is empty. Raises CorruptError when the file
        is gone or damaged."""
        with self._explained(), self._damaged(name):
            opened = self._store.files.open_input_file(f"{self._directory}/{name}")
            with pq.ParquetFile(opened, page_checksum_verification=True) as file:
                first = 0
                for number in range(file.num_row_groups):
                    last = first + file.metadata.row_group(number).num_rows
                    if last > start and first < end:
                        row = first
                        for batch in file.iter_batches(READ_ROWS, row_groups=[number]):
                            wanted = batch[max(start - row, 0) : max(end - row, 0)]
                            row += batch.num_rows
                            if wanted.num_rows:
                                yield wanted.column(0)
                    first = last
                if first < end:
                    raise CorruptError(f"{self._name}/{name} has {first} rows, not {end}")

    def remove_below(self, number: int) -> None:
        """The files of all due times before this one, whether anybody has named them or not."""
        with self._explained():
            selector = fs.FileSelector(self._directory, allow_not_found=True)
            for info in self._store.files.get_file_info(selector):
                found, _, _ = info.base_name.partition(".")
                if found.isdigit() and int(found) < number:
                    with suppress(FileNotFoundError):
                        self._store.files.delete_file(info.path)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            why = f"{self._name}: {error}: let the user of the node write there"
            raise UserError(why) from error
        except OSError as error:
            explained = self._store.explained(error)
            if isinstance(explained, OSError):
                raise UnavailableError(f"{self._name}: {error}") from error
            raise explained from error

    @contextmanager
    def _damaged(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise CorruptError(f"{self._name}/{name} is not there any more") from error
        except OSError as error:
            if error.errno is None and "AWS Error" not in str(error):
                raise CorruptError(f"{self._name}/{name} is damaged: {error}") from error
            raise
        except (ValueError, pa.ArrowException) as error:
            raise CorruptError(f"{self._name}/{name} is damaged: {error}") from error


class AnswerFile:
    """One that is being written. ``rows`` are in it so far."""

    def __init__(self, name: str, writer: pq.ParquetWriter) -> None:
        self.name = name
        self.rows = 0
        self._writer = writer

    def append(self, bodies: pa.BinaryArray) -> None:
        if len(bodies):
            table = pa.table([bodies.cast(pa.binary())], schema=SCHEMA)
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
            self.rows += len(bodies)
