"""Sink into a table that records the last batch number. Executors write Parquet files, invisible at
first. The driver adds them and the number in one commit. Its table handle is made before the number
is read, so only one of two owners can commit a batch. Tasks share commits (``group_commit``)."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import pyarrow as pa

from flumeng.connectors.api.dead_letters import schema_around
from flumeng.connectors.api.sink import Attempt, BatchId, Row, TaskRevision, Written
from flumeng.connectors.lakehouse import group_commit, table_files
from flumeng.connectors.lakehouse.group_commit import Addition, GroupCommit
from flumeng.connectors.lakehouse.options import Delta, Iceberg
from flumeng.connectors.lakehouse.table_files import Layout, TableFile, Unreachable, WriteFiles
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.file_store import LOCAL

COMMITS = 12
"""Most attempts when other writers commit first."""
_Result = TypeVar("_Result")


class OvertakenError(FlumengError):
    """Another writer committed first; nothing was committed."""


class Table(ABC):
    """A table of one format. Each public call loads it again. Raises UserError, UnavailableError,
    and OvertakenError when a commit lost against another writer."""

    def __init__(self, options: Delta | Iceberg) -> None:
        self._secrets = secrets.of(options.credentials)
        self._local: dict[str, LocalDirectory] = {}

    def prepare(self, events: pa.Schema) -> Layout:
        """Create a missing table, or fit the table to ``events`` if the options allow it. Return
        the layout of files."""
        with self._translated():
            return self._layout(self._load() or self._create(events), events)

    def probe(self) -> None:
        """Check access by loading the table; a missing table is no error."""
        with self._translated():
            self._load()

    def add(self, additions: Sequence[Addition]) -> Sequence[Addition]:
        """Commit additions, without batches that the table has. Return those that no longer fit it;
        all if it is missing. After OvertakenError or ConflictError nothing is committed."""
        with self._translated():
            table = self._load()
            if table is None:
                return additions
            taken, unfit = group_commit.to_commit(
                additions, partial(self._number, table), partial(self._fits, table)
            )
            if taken:
                self._append(table, taken)
            location = self._metadata_location(table)
            if location.startswith("/"):
                self._local.setdefault(location, LocalDirectory(location)).sync()
        return unfit

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except FlumengError:
            raise
        except Exception as error:
            raise self._meaning(error) from error

    @abstractmethod
    def _load(self) -> Any | None:
        """Return a handle of the current table; None when the table is missing."""

    @abstractmethod
    def _create(self, events: pa.Schema) -> Any: ...

    @abstractmethod
    def _layout(self, table: Any, events: pa.Schema) -> Layout:
        """Add columns and widen types if the options allow it; return the layout of files."""

    @abstractmethod
    def _number(self, table: Any, series: str) -> int | None:
        """Return the number of a series' last batch in the table; None if there is none."""

    @abstractmethod
    def _fits(self, table: Any, files: Sequence[TableFile]) -> bool:
        """Return whether the table still has the files' columns and partitions."""

    @abstractmethod
    def _append(self, table: Any, additions: Sequence[Addition]) -> None: ...

    @abstractmethod
    def _metadata_location(self, table: Any) -> str:
        """Return the directory of commits; ``add`` syncs it when it is local."""

    @abstractmethod
    def _meaning(self, error: Exception) -> FlumengError:
        """Convert an error of the library."""


class TableSink:
    roots = ()
    identified = writes_at_once = False

    def __init__(
        self, table: Table, commits: GroupCommit, task: TaskRevision, call: Caller | None = None
    ) -> None:
        self._table = table
        self._task = f"{task.flow}/{task.task}"
        self._commits = commits
        self._commits.join(self, self._task)
        self._call = call or Caller()
        self._layouts: dict[pa.Schema, Layout] = {}

    def probe(self) -> None:
        self._call(self._table.probe)

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        """Prepare the table when the schema changes. An unreachable table fails the batch, not the
        task; raises UserError when the events do not fit the table."""
        stage: WriteFiles | Unreachable
        try:
            stage = WriteFiles(self._layout(batch.schema))
        except UnavailableError as error:
            stage = Unreachable(str(error))
        around = attempt.dead_letters.around(stage, table_files.WRITTEN_SCHEMA)
        return batch.arrow(around, schema_around(table_files.WRITTEN_SCHEMA))

    def written(self, rows: Sequence[Row]) -> Written:
        files = table_files.read(rows)
        events, far = (sum(row[name] for row in rows) for name in ("events", "refused"))
        return Written(events, refused=far, commit=partial(self._commit, files) if files else None)

    def _layout(self, events: pa.Schema) -> Layout:
        layout = self._layouts.get(events)
        if layout is None:
            layout = self._call.repeated(self._table.prepare, events)
            self._layouts = {events: layout}
        return layout

    def _commit(self, files: Sequence[TableFile], batch: BatchId | None) -> None:
        add, patience = partial(self._call.repeated, self._table.add), self._call.answer_seconds
        if not self._commits.commit(Addition(files, batch), self._task, add, patience):
            self._layouts = {}
            raise UnavailableError("the table changed while its files were written: retrying")


class LocalDirectory:
    """Metadata directory of a local table; the libraries do not sync it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._synced_ns = 0

    def sync(self) -> None:
        """Sync new files, including those of a previous owner that was killed."""
        newest = self._synced_ns
        for entry in os.scandir(self._path):
            with suppress(FileNotFoundError):
                changed_ns = entry.stat().st_mtime_ns
                if entry.is_file() and changed_ns >= self._synced_ns:
                    LOCAL.sync(entry.path)
                newest = max(newest, changed_ns)
        LOCAL.sync(self._path)
        self._synced_ns = newest


def imported(package: str, extra: str) -> Any:
    """Import an optional package. Raises UserError when that fails."""
    try:
        return import_module(package)
    except ImportError as error:
        raise UserError(f"{error}: pip install 'flumeng[{extra}]'") from error


@dataclass
class Caller:
    """Runs calls that may hang, one at a time. A call that ends after ``answer_seconds`` is
    harmless: it commits its own batch, or another writer has committed first."""

    answer_seconds: float = 20.0
    """Time limit of a call; the task's whole step may take 30 s."""
    forget_seconds: float = 300.0
    """For this long from the start of a hanging call, other calls raise UnavailableError. Then it
    is abandoned: its server may be gone."""
    pause_seconds: float = 0.05
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    _last: threading.Thread | None = None
    _began: float = 0.0

    def __call__(self, call: Callable[[], _Result]) -> _Result:
        outcome: list[_Result] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(call())
            except BaseException as error:
                failed.append(error)

        with self._one_at_a_time:
            seconds = time.monotonic() - self._began
            if self._last is not None and self._last.is_alive() and seconds < self.forget_seconds:
                raise UnavailableError(f"the table has not responded for {seconds:.0f} s")
            self._began = time.monotonic()
            self._last = threading.Thread(target=run, name="table", daemon=True)
            self._last.start()
            self._last.join(self.answer_seconds)
        if failed:
            raise failed[0]
        if not outcome:
            raise UnavailableError(f"the table did not respond within {self.answer_seconds:.0f} s")
        return outcome[0]

    def repeated(self, step: Callable[..., _Result], *given: Any) -> _Result:
        """Call ``step`` again while other writers commit first. Raises UnavailableError after
        COMMITS attempts or ``answer_seconds``."""
        began = time.monotonic()
        for attempt in itertools.count(1):
            try:
                return self(partial(step, *given))
            except OvertakenError as error:
                if attempt == COMMITS or time.monotonic() - began > self.answer_seconds:
                    text = f"other writers committed to the table first, {attempt} times: {error}"
                    raise UnavailableError(text) from error
            time.sleep(self.pause_seconds * 2 ** min(attempt, 6) * random.uniform(0.5, 1.5))
        raise AssertionError
