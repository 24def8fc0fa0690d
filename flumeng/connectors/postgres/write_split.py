"""Writes a split of a batch in one transaction, in an executor.

Exactly once by batch: each split's last batch number is stored in ``flumeng_batches``, in the
transaction of its events. A writer with that number or a lower one writes nothing, even if the
answer to COMMIT was lost; concurrent writers wait for the row lock. By event: journal and seq are
the key. A refused row is found by bisection, in savepoints; by batch, its id and reason are stored
in ``flumeng_batches``, so that a repeat refuses it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from flumeng.connectors.api import chunks
from flumeng.connectors.api.backoff import FRESH_SECONDS, Backoff
from flumeng.connectors.api.dead_letters import Refuse
from flumeng.connectors.api.sink import BatchId
from flumeng.connectors.postgres import columns, statements
from flumeng.connectors.postgres.columns import UnfitError
from flumeng.connectors.postgres.connection import Connection, RefusedRowsError
from flumeng.connectors.postgres.options import Sql
from flumeng.connectors.postgres.statements import FIND_COLUMNS, MAY_INSERT
from flumeng.connectors.postgres.target import COUNT_SCHEMA, Server, TableName, Target
from flumeng.events.identity import JOURNAL, SEQ, SPLIT
from flumeng.platform.connection_pool import ConnectionPool
from flumeng.platform.errors import UnavailableError, UserError

CHUNK_BYTES = 8 * 1024 * 1024
"""Approximate size of one COPY."""
_idle: ConnectionPool[Server, Connection] = ConnectionPool()


@dataclass(frozen=True)
class WriteSplit:
    """Stage that writes a split and yields its event count. ``sink``: the place of the sink."""

    target: Target
    batch: BatchId | None
    sink: str
    patience_seconds: float | None = None

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        parts = chunks.gathered(batches, CHUNK_BYTES)
        first = next(parts, None)
        events = 0 if first is None else self._write(first, parts, refuse)
        yield pa.RecordBatch.from_arrays([pa.array([events], pa.int64())], schema=COUNT_SCHEMA)

    def _write(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], refuse: Refuse) -> int:
        claim = None
        if self.batch is not None:
            claim = Claim(self.batch, self.sink, first.column(SPLIT)[0].as_py())
        connection, opened = self._begin(claim)
        events = 0
        try:
            before = opened.refused_before() if opened.repeated else None
            if before is not None:
                opened.roll_back()
            for chunk in chain([first], rest):
                events += chunk.num_rows
                if before is None:
                    opened.write(chunk, refuse)
                else:
                    again(chunk, before, refuse)
            if before is None:
                opened.commit()
        except BaseException:
            connection.close()
            raise
        _idle.keep(self.target.server, connection)
        return events

    def _begin(self, claim: Claim | None) -> tuple[Connection, Transaction]:
        """Begin a transaction, with retries: a restarting server does not answer at once."""
        backoff = Backoff(FRESH_SECONDS, self.patience_seconds)
        while True:
            try:
                return self._try_to_begin(claim)
            except UnavailableError as error:
                backoff.pause(error)

    def _try_to_begin(self, claim: Claim | None) -> tuple[Connection, Transaction]:
        server = self.target.server
        connection = _idle.take(server) or Connection(server)
        try:
            return connection, Transaction(connection, self.target, claim)
        except BaseException:
            connection.close()
            raise


def probe(server: Server, options: Sql) -> None:
    """Check the server, the table and the right to insert. Raises UnavailableError, UserError."""
    connection = Connection(server)
    try:
        table = TableName(*options.schema_and_name)
        if connection.execute(FIND_COLUMNS, str(table)):
            if connection.execute(MAY_INSERT, str(table)) != [("true",)]:
                raise UserError(
                    f"{server}: the user may not insert rows into table {table}: grant INSERT"
                )
        elif not options.create:
            raise UserError(
                f"{server}: table {table} does not exist, or the user may not see it: create it, "
                "or set `create: true`"
            )
    finally:
        connection.close()


Refused = dict[tuple[str, int], str]
"""Reasons of refused events, by journal and seq."""


@dataclass(frozen=True)
class Claim:
    """The id of a split: its batch, the place of the sink in the flow, and its number."""

    batch: BatchId
    sink: str
    split: int

    @property
    def series(self) -> str:
        return f"{self.batch.series} {self.sink}"

    @property
    def backend(self) -> str:
        """Application name by which a split's writer is found; at most 63 bytes."""
        text = f"{self.series} {self.split}"
        return f"flumeng {hashlib.sha256(text.encode()).hexdigest()[:32]}"


class Transaction:
    """A begun transaction; after an error close its connection. ``repeated``: written before."""

    def __init__(self, connection: Connection, target: Target, claim: Claim | None) -> None:
        """Begin. ``claim``: only for writes by batch. Raises UnavailableError, UserError."""
        self._connection = connection
        self._target = target
        self._claim = claim
        self._refused: Refused = {}
        if target not in connection.prepared:
            connection.prepared[target] = self._prepare()
        self._incoming, self._types = connection.prepared[target]
        connection.execute("BEGIN")
        connection.execute(statements.hold(target.table))
        if self._find_columns(target.table) != self._types:
            raise UnavailableError(f"the columns of {target.table} have changed: retrying")
        self.repeated = claim is not None and not self._take(claim)

    def write(self, events: pa.RecordBatch, refuse: Refuse) -> None:
        """Write events; call ``refuse`` for each row that the server rejects or that does not fit.
        Raises UnavailableError, UserError, and the errors of ``refuse``."""
        try:
            self._put(self._encoded(events))
        except (RefusedRowsError, UnfitError) as error:
            reason = str(error)
        else:
            return
        half = events.num_rows // 2
        if half:
            self.write(events.slice(0, half), refuse)
            self.write(events.slice(half), refuse)
            return
        refuse(events, [reason])
        if self._claim is not None:
            self._refused[_ids(events)[0]] = reason

    def refused_before(self) -> Refused:
        """Return the reasons of rows that were refused when this batch was first written."""
        assert self._claim is not None
        claim, table = self._claim, self._target.table
        rows = self._connection.execute(
            statements.find_refused(table), claim.series, claim.split, claim.batch.number
        )
        return {(journal, seq): why for row in rows for journal, seq, why in json.loads(row[0])}

    def commit(self) -> None:
        """Commit. After UnavailableError the outcome is unknown."""
        if self._claim is not None and self._refused:
            rows = json.dumps([[*event, why] for event, why in self._refused.items()])
            self._connection.execute(
                statements.note_refused(self._target.table),
                self._claim.series,
                self._claim.split,
                rows.replace("\\u0000", columns.REPLACEMENT),
            )
        self._connection.execute("COMMIT")

    def roll_back(self) -> None:
        self._connection.execute("ROLLBACK")

    def _take(self, claim: Claim) -> bool:
        """Lock the split's row; return whether its batch number is higher than the stored one."""
        run = self._connection.execute
        run(statements.TAKE_NAME, claim.backend)
        values = (claim.series, claim.split, claim.batch.number)
        try:
            return bool(run(statements.claim(self._target.table), *values))
        except UnavailableError:
            self._end_zombies(claim)
            raise

    def _end_zombies(self, claim: Claim) -> None:
        """End an earlier writer of this split: it may hang in a COPY and hold the lock."""
        connection = Connection(self._target.server)
        try:
            connection.execute(statements.END_NAMESAKES, claim.backend)
        finally:
            connection.close()

    def _put(self, rows: pa.RecordBatch) -> None:
        """Write all rows or, with RefusedRowsError, none."""
        run, target = self._connection.execute, self._target
        run("SAVEPOINT rows")
        try:
            if self._incoming is None:
                self._connection.copy(rows, target.table, "")
            else:
                self._connection.copy(rows, None, self._incoming)
                run(statements.upsert(self._incoming, target.table, rows.schema.names))
                run(f"TRUNCATE {self._incoming}")
        except RefusedRowsError:
            run("ROLLBACK TO SAVEPOINT rows")
            run("RELEASE SAVEPOINT rows")
            raise
        run("RELEASE SAVEPOINT rows")

    def _encoded(self, events: pa.RecordBatch) -> pa.RecordBatch:
        names = self._target.schema.names
        encoded = [
            columns.encode(name, events.column(self._target.source(name)), self._types[name])
            for name in names
        ]
        return pa.RecordBatch.from_arrays(encoded, names)

    def _prepare(self) -> tuple[str | None, dict[str, str]]:
        """Create missing tables and columns if the options allow it; called once per connection and
        target. Return the temporary table of upserts, if any, and the type of each column."""
        target, table = self._target, self._target.table
        types = self._find_columns(table)
        if not types and target.creates:
            self._define(statements.create(table, target.schema, keyed=target.upserts))
        elif types and target.adds and (lacking := self._lacking(types)):
            self._define(statements.add_columns(table, lacking))
        types = self._find_columns(table)
        self._check(types)
        if self._claim is not None and not self._find_columns(table.batches):
            self._define(statements.create_batches(table))
        if not target.upserts:
            return None, types
        incoming = f"flumeng_incoming_{len(self._connection.prepared)}"
        self._define(statements.create_incoming(incoming, table, target.schema.names))
        return incoming, types

    def _define(self, statement: str) -> None:
        try:
            self._connection.execute(statement)
        except RefusedRowsError as error:  # the rows of the server's own catalog
            raise UnavailableError(f"another writer creates the table: {error}") from error

    def _find_columns(self, table: TableName) -> dict[str, str]:
        return dict(self._connection.execute(statements.FIND_COLUMNS, str(table)))

    def _lacking(self, types: dict[str, str]) -> list[pa.Field]:
        return [field for field in self._target.schema if field.name not in types]

    def _check(self, types: dict[str, str]) -> None:
        table = self._target.table
        if not types:
            raise UserError(f"sql: table {table} does not exist: create it, or set create: true")
        if lacking := self._lacking(types):
            names = ", ".join(field.name for field in lacking)
            raise UserError(
                f"sql: {table} has no column {names}: add it, set schema: add, or drop it with "
                "select"
            )
        for name in self._target.schema.names:
            if types[name] not in columns.ABLE:
                raise UserError(
                    f"sql: the column {name} of {table} has the unsupported type {types[name]}; "
                    f"supported: {', '.join(columns.ABLE)}"
                )


def again(events: pa.RecordBatch, before: Refused, refuse: Refuse) -> None:
    """Refuse the events that were refused when the batch was first written."""
    for number, event in enumerate(_ids(events)):
        if event in before:
            refuse(events.slice(number, 1), [before[event]])


def _ids(events: pa.RecordBatch) -> list[tuple[str, int]]:
    journals, seqs = (events.column(name).to_pylist() for name in (JOURNAL, SEQ))
    return list(zip(journals, seqs, strict=True))
