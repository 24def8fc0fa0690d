"""A lookup table in the memory of the driver, refreshed when it is old.

A thread reads the table, since its source may hang. A batch waits longer for a missing table than
for a new version. While the old version is usable, only the batch that starts a read waits for it.
When a refresh fails, the old version is used until it is too old, and ``trouble`` has the error.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from flumeng.config.tables import LookupTable
from flumeng.filters import table_reader
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import scrub
from flumeng.platform.trouble_log import TroubleLog

T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_SECONDS = 10.0
MOMENT_SECONDS = 2.0
AGAIN_SECONDS = 5.0
"""Pause after a failed read."""
GIVEN_UP_SECONDS = 120.0
"""A read that takes longer is abandoned, and another one begins."""
MOST_READS = 4
"""Most threads that read a table at once, including abandoned reads."""


@dataclass(eq=False)
class Version:
    table: pa.Table
    _in_spark: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def in_spark(
        self, hand_over: Callable[[pa.Table], T], take_back: Callable[[T], None] | None = None
    ) -> T:
        """Call ``hand_over`` once and share its result. ``take_back`` receives the result when this
        version is no longer used."""
        with self._lock:
            if self._in_spark is None:
                self._in_spark = hand_over(self.table)
                if take_back is not None:
                    weakref.finalize(self, take_back, self._in_spark).atexit = False
            shared_value: T = self._in_spark
            return shared_value


class RefreshedTable:
    """A table that is read again when old. Thread-safe. ``version`` is None until ``refresh``."""

    def __init__(
        self,
        options: LookupTable,
        schema: pa.Schema,
        read: Callable[[], pa.Table],
        clock: Callable[[], float] = time.monotonic,
        *,
        first_seconds: float = FIRST_SECONDS,
        moment_seconds: float = MOMENT_SECONDS,
    ) -> None:
        self.schema = schema
        self.first_seconds, self.moment_seconds = first_seconds, moment_seconds
        self.version: Version | None = None
        self._options = options
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = -math.inf
        self._failed_at = -math.inf
        self._error: FlumengError | None = None
        self._faults = TroubleLog(log)
        self._reading: threading.Event | None = None
        self._began_at = -math.inf
        self._reads = 0

    @property
    def trouble(self) -> str:
        """The error of the last refresh while an old version is in use; empty otherwise."""
        error = self._error
        if error is None or self.version is None:
            return ""
        return f"cannot refresh {self._name}, still using the old version: {error}"

    def refresh(self) -> None:
        """Read the table again when it is old; called at the start of a batch. Raises
        UnavailableError, or the error of the read, when there is no usable version."""
        with self._lock:
            now = self._clock()
            age = now - self._read_at
            usable = self.version is not None and age < self._options.stale_seconds
            due = age >= self._options.refresh_seconds and now - self._failed_at >= AGAIN_SECONDS
            hangs = now - self._began_at >= GIVEN_UP_SECONDS and self._reads < MOST_READS
            begun = due and (self._reading is None or hangs)
            if begun:
                self._begin(now)
            reading = self._reading
        if reading is not None and (begun or not usable):
            reading.wait(self.moment_seconds if usable else self.first_seconds)
        with self._lock:
            age = self._clock() - self._read_at
            if self.version is not None and age < self._options.stale_seconds:
                return
            if self._error is not None:
                raise type(self._error)(f"{self._name}: {self._error}")
            raise UnavailableError(f"{self._name} was not read within {self.first_seconds:.0f} s")

    @property
    def _name(self) -> str:
        return f"the lookup table {self._options.name}"

    def _begin(self, now: float) -> None:
        if self._reading is not None:
            log.warning("%s was not read within %.0f s: retrying", self._name, GIVEN_UP_SECONDS)
        self._reading = threading.Event()
        self._began_at = now
        self._reads += 1
        threading.Thread(
            target=self._run, args=(self._reading,), name="lookup", daemon=True
        ).start()

    def _run(self, reading: threading.Event) -> None:
        error: FlumengError | None = None
        version = None
        began = self._clock()
        try:
            version = Version(self._read())
            self._faults.end("%s can be read again", self._name)
        except FlumengError as failed:
            error = type(failed)(scrub(str(failed)))
        except Exception as failed:
            error = UnavailableError(scrub(f"{type(failed).__name__}: {failed}"))
            text = "cannot read %s, retrying with the next batches: %s"
            self._faults.log(logging.ERROR, text, self._name, error, cause=failed)
        with self._lock:
            self._reads -= 1
            if reading is not self._reading:
                return
            self._error = error
            if version is None:
                self._failed_at = self._clock()
            else:
                if self.version is None or not version.table.equals(self.version.table):
                    self.version = version  # Spark has the other one already
                self._read_at = began
            reading.set()
            self._reading = None


_shared: weakref.WeakValueDictionary[str, RefreshedTable] = weakref.WeakValueDictionary()
_sharing = threading.Lock()


def shared(
    spark: SparkSession, options: LookupTable, schema: pa.Schema, keys: tuple[str, ...] = ()
) -> RefreshedTable:
    """Return this process's table with these options, shared by flows. ``keys`` must be unique."""

    def read() -> pa.Table:
        table = table_reader.read(options, schema, spark)
        if keys:
            require_unique(table, keys)
        return table

    key = repr((options, schema, keys))
    with _sharing:
        refreshed = _shared.get(key)
        if refreshed is None:
            refreshed = _shared[key] = RefreshedTable(options, schema, read)
        return refreshed


def require_unique(table: pa.Table, keys: tuple[str, ...]) -> None:
    """Check that no two rows have the same ``keys``, apart from nulls. Raises UserError."""
    there = reduce(pc.and_, (pc.is_valid(table[name]) for name in keys))
    counted = table.filter(there).group_by(list(keys)).aggregate([([], "count_all")])
    several = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).to_pylist()
    if several:
        row = ", ".join(f"{name} {several[0][name]!r}" for name in keys)
        count = several[0]["count_all"]
        raise UserError(f"the table has {count} rows with {row}, but the keys must be unique")
