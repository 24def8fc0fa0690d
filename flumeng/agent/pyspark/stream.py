"""``spark.readStream``: micro-batches of exact ranges.

Rules
1. Spark's checkpoint is authoritative, and the cursor follows it: Spark commits a batch when it
   plans the next one, so journals keep slightly more than needed, never less.
2. Without a checkpoint the stream resumes at the cursor: the last batch is read again.
3. A journal whose server does not answer does not advance; all other journals do.
4. While ZooKeeper does not answer a running stream waits; a new one fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from flumeng.agent.pyspark.cursor import connect
from flumeng.agent.pyspark.options import Options
from flumeng.agent.pyspark.planning import Ends, Planning, limited, ordered, read
from flumeng.control.commands.cursors import Cursor, require_readable
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UnavailableError
from flumeng.platform.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # Spark 4.0 and 4.1 have no limits, and ask for one batch
        SupportsTriggerAvailableNow = object

log = logging.getLogger(__name__)

RENEW_SHARE = 4
Offsets = Mapping[str, int]


class Opened:
    """A reader's connections in the process that plans for Spark. ``ends``: the last answers."""

    def __init__(self, options: Options, store: Store) -> None:
        self.store = store
        self.planning = Planning(options, store)
        self.cursor: Cursor | None = None
        self.ends = Ends({}, {})
        if options.cursor:
            self.cursor = Cursor.take(
                store,
                options.flow,
                options.cursor,
                keep_seconds=options.keep_seconds,
                begin=self.planning.begin,
            )
        else:
            require_readable(store, options.flow)
        self.renewed_at = time.monotonic()

    def read_ends(self) -> Ends:
        self.ends = self.planning.read_ends()
        return self.ends

    def close(self) -> None:
        self.planning.close()


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. Only the planning process connects to ZooKeeper. ``_at``: start of the
    next batch, if known. ``_planned``: the last planned batch, which Spark requests twice.
    ``_resumed``: the first batch may repeat events. ``_delivered``: that batch was planned."""

    def __init__(self, options: Options, connect: Callable[[str], Store] = connect) -> None:
        self._options = options
        self._connect = connect
        self._held: Opened | None = None
        self._at: dict[str, int] | None = None
        self._begun: dict[str, int] | None = None
        self._until: dict[str, int] | None = None
        self._planned: tuple[Offsets, Offsets, list[InputPartition]] | None = None
        self._resumed, self._delivered = True, False
        self._away = RateLimitedLog(log)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's
        """Return the start of the stream, which stays the same in this process."""
        held = self._open()
        self._resumed = held.cursor is not None and held.cursor.existed
        begun = self._begin(held)
        if self._at is None:
            self._at = begun
        return begun

    def latestOffset(  # noqa: N802  Spark's
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """Return the end of the next batch. Without ``start`` and ``limit``, before Spark 4.2, the
        first batch has no limit. Raises ConflictError when another reader has taken the cursor,
        DataLossError, and UnavailableError when a first batch needs an unresponsive server."""
        held = self._open()
        at = start if start is not None else self._at
        most = self._options.max_events if limit is None else getattr(limit, "max_rows", None)
        try:
            self._renew(held)
            before, ends = held.ends, held.read_ends()
        except UnavailableError as error:
            if at is None:
                raise
            self._away.warning("the stream reader cannot look for new events, retrying: %s", error)
            return ordered(at)
        if at is None:
            ends.require_all("only the checkpoint has the positions of their journals")
            self._at = ordered({**self._begin(held), **held.read_ends().reached})
            return self._at
        at = self._without_gone(held, at, before, ends)
        named = {**ends.floors, **self._acks(held, ends, at), **at}
        reached = ends.reached
        if self._until is not None:
            reached = {name: min(end, self._until.get(name, 0)) for name, end in reached.items()}
        total = sum(reached.values())
        self._at = limited(named, reached, most or max(1, total))
        return self._at

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's
        """Return the limit of a batch. Called since Spark 4.2."""
        from pyspark.sql.streaming.datasource import ReadMaxRows  # noqa: PLC0415  not in 4.0

        return ReadMaxRows(self._options.max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's
        """End the stream with the events available now. Called since Spark 4.2."""
        self._until = self._open().read_ends().reached

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        if self._planned is not None and self._planned[:2] == (start, end):
            return self._planned[2]
        if self._at is None:
            self._at = end
        planning, replayed = self._open().planning, self._resumed and not self._delivered
        back = [name for name in end if name in start and end[name] < start[name]]
        planning.lose(back, "were first read at their ends, which have advanced since")
        parts = planning.partitions(start, end, replayed=replayed)
        self._planned, self._delivered = (start, end, parts), bool(parts) or self._delivered
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._options.columns)

    def commit(self, end: dict[str, int]) -> None:
        """Move any cursor to ``end``. Raises ConflictError when another reader has taken it."""
        held = self._open()
        if held.cursor is None:
            return
        try:
            held.cursor.commit(end)
            held.renewed_at = time.monotonic()
        except UnavailableError as error:  # the next commit covers this one
            log.warning("the cursor is advanced by the next commit, not now: %s", error)

    def stop(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held.store.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    def _open(self) -> Opened:
        if self._held is None:
            self._held = Opened(self._options, self._connect(self._options.zookeeper))
        return self._held

    def _begin(self, held: Opened) -> dict[str, int]:
        if self._begun is None:
            if held.cursor is None:
                self._begun = held.planning.begin()
            else:
                self._begun = ordered({**held.read_ends().floors, **held.cursor.offsets()})
        return self._begun

    def _renew(self, held: Opened) -> None:
        due = held.renewed_at + self._options.keep_seconds / RENEW_SHARE
        if held.cursor is not None and time.monotonic() >= due:
            held.cursor.renew()
            held.renewed_at = time.monotonic()

    def _acks(self, held: Opened, ends: Ends, at: Offsets) -> dict[str, int]:
        if held.cursor is None or ends.names <= at.keys():
            return {}
        return {name: ack for name, ack in held.cursor.offsets().items() if name in ends.names}

    def _without_gone(self, held: Opened, at: Offsets, old: Ends, new: Ends) -> dict[str, int]:
        """Return ``at`` without removed journals. A journal is removed once every cursor has read
        it; without a cursor its last known end shows whether it was read."""
        gone = [name for name in at if name not in new.names]
        if gone:
            acks = held.cursor.offsets() if held.cursor is not None else old.reached
            unread = [name for name in gone if name not in acks or at[name] < acks[name]]
            held.planning.lose(unread, "were removed, apparently before their ends were read")
        return {name: offset for name, offset in at.items() if name in new.names}
