"""The input ``sqlite_rows``: one partition, the table; an offset is a ``rowid``."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from flumeng.connectors.api import Ends, RangedInput, UnavailableError, UserError
from flumeng_example.options import SqliteRows

ROWS_AT_ONCE = 10_000


class SqliteRowsInput(RangedInput):
    name = "sqlite_rows"

    def __init__(self, options: SqliteRows) -> None:
        self._options = options

    def list(self) -> Mapping[str, str]:
        """A replaced file is another partition."""
        return {self._options.table: self._incarnation()}

    def ends(self, partitions: Collection[str]) -> Mapping[str, Ends]:
        with self._opened() as database:
            query = f"SELECT min(rowid), max(rowid) FROM {self._options.table}"
            first, last = _query(database, query)[0]
        first, end = (0, 0) if last is None else (first, last + 1)
        return dict.fromkeys(partitions, Ends(first, end, incarnation=self._incarnation()))

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        del partition  # there is only one
        query = (
            f"SELECT rowid, {self._options.column} FROM {self._options.table} "
            "WHERE rowid >= ? AND rowid < ? ORDER BY rowid LIMIT ?"
        )
        with self._opened() as database:
            while rows := _query(database, query, start, end, ROWS_AT_ONCE):
                bodies = [str(body).encode() for _, body in rows]
                yield pa.record_batch(
                    {
                        "seq": pa.array([number for number, _ in rows], pa.int64()),
                        "body": pa.array(bodies, pa.binary()),
                    }
                )
                start = rows[-1][0] + 1

    def _incarnation(self) -> str:
        """The inode of the file. File systems reuse the inode of a removed file: where files are
        replaced often, add something constant of each, such as a checksum of its first row."""
        try:
            return str(Path(self._options.path).stat().st_ino)
        except OSError as error:
            raise UserError(f"sqlite_rows: {self._options.path}: {error.strerror}") from error

    def _opened(self) -> closing[sqlite3.Connection]:
        path = f"file:{self._options.path}?mode=ro"
        try:
            return closing(sqlite3.connect(path, uri=True, timeout=5))
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"sqlite_rows: {self._options.path}: {error}") from error


def _query(database: sqlite3.Connection, query: str, *values: int) -> list[tuple[Any, ...]]:
    try:
        return database.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if "no such" in str(error):
            raise UserError(f"sqlite_rows: {error}") from error
        raise UnavailableError(f"sqlite_rows: {error}") from error
