"""Polls a database for all rows, or for each row once by a growing column. A row is taken when no
lower one can appear any more, as transactions become visible out of order: ``sql_state`` decides
for numbers; times must be old enough by the database's clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Protocol
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.objects.formats import texts_of
from flumeng.connectors.polls.poll import Answer
from flumeng.connectors.polls.sql_options import SqlPollSource, TrackColumn
from flumeng.connectors.polls.sql_state import (
    EPOCH,
    State,
    complete,
    marked,
    settled,
    time_bound,
    time_constant,
)
from flumeng.connectors.polls.sql_statements import Position, Statements
from flumeng.events import json_text
from flumeng.platform.errors import CorruptError, UserError

PAGE_ROWS = 20_000
PAGE_BYTES = 8 * 2**20
"""Limit in Arrow bytes; JSON takes about twice as much."""
LARGEST = 8
"""Factor on ``PAGE_BYTES`` for indivisible answers: rows with one time, and whole tables."""
_WHOLE = re.compile("-?[0-9]+", re.ASCII)


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query. ``cut``: more rows may exist."""

    rows: pa.Table
    cut: bool


class JdbcQuery(Protocol):
    def __call__(self, statement: str, most_bytes: int) -> QueryResult:
        """Return a SELECT's rows, up to the batch that exceeds ``most_bytes``. Numbers too long for
        Arrow are texts with metadata ``json_text.NUMBER``. Raises UnavailableError, UserError."""

    def close(self) -> None:
        """End the statement; thread-safe."""


@dataclass(frozen=True)
class Page:
    """Sorted rows with their tracked values and keys. ``full``: more rows may follow."""

    rows: pa.Table
    values: list[str]
    keys: list[str | int]
    full: bool

    @classmethod
    def of(cls, result: QueryResult, count: int, *, keyed: bool) -> Page | None:
        """Return the page of at most ``count`` rows; the result's last columns are value, key if
        ``keyed``, and row number. None when these are not the first rows."""
        rows = result.rows.take(pc.sort_indices(result.rows.column(-1)))
        if rows.column(-1).to_pylist() != list(range(1, rows.num_rows + 1)):
            return None
        helpers = 3 if keyed else 2
        plain = rows.select(range(rows.num_columns - helpers))
        keys = _keys(rows.column(-2)) if keyed else []
        values = rows.column(-helpers).to_pylist()
        return cls(plain, values, keys, result.cut or rows.num_rows >= count)

    def first(self, count: int) -> Page:
        rows = self.rows.slice(0, count)
        return replace(self, rows=rows, values=self.values[:count], keys=self.keys[:count])

    @property
    def last_group(self) -> int:
        """Index of the first row with the last value; more rows with that value may follow."""
        return self.values.index(self.values[-1]) if self.values else 0

    @property
    def duplicate(self) -> tuple[str | int, ...] | None:
        """The value, and the key, that two rows share; None when there are no such rows."""
        columns = [self.values, self.keys] if self.keys else [self.values]
        rows = zip(*columns, strict=True)
        return next((row for row, following in pairwise(rows) if row == following), None)


class SqlPoll:
    """``Poll`` of a database."""

    def __init__(
        self, options: SqlPollSource, query: JdbcQuery, page_rows: int = PAGE_ROWS
    ) -> None:
        self._options = options
        self._query = query
        self._page_rows = page_rows
        self._statements = Statements(options)

    def ask(self, state: str, due: datetime) -> Answer:  # noqa: ARG002
        track = self._options.track
        if track is None:
            return Answer(self._whole(), state)
        at = State.of(state, track.column, track.key)
        behind = _behind(at)
        row = self._query(self._statements.probe(track, behind), PAGE_BYTES).rows
        clock, column, top = row.schema.field(0), row.schema.field(1), row.column(2)[0].as_py()
        is_number = _is_number(column, track)
        if top is None:
            return Answer(bodies_of(row.slice(0, 0)), state)
        now_us = row.column(0).cast(pa.timestamp("us", clock.type.tz)).cast(pa.int64())[0].as_py()
        if is_number:
            return self._numbers(at, track, now_us, _number(top, track))
        return self._times(at, track, now_us, zoned=column.type.tz is not None)

    def close(self) -> None:
        self._query.close()

    def _whole(self) -> pa.BinaryArray:
        most = LARGEST * PAGE_BYTES
        result = self._query(self._statements.whole(), most)
        if result.cut:
            raise UserError(
                f"the rows have more than {most // 2**20} MiB, which is too much for one answer: "
                "take them in parts with `track`, or take fewer `columns`"
            )
        return bodies_of(result.rows)

    def _numbers(self, at: State, track: TrackColumn, now_us: int, top: int) -> Answer:
        settle_us = int(track.settle_seconds * 1e6)
        marks = marked(at.marks, now_us, top, settle_us)
        below = None if track.start_from is None else int(track.start_from) - 1
        below = below if at.value is None else _number(at.value, track)
        behind = None if below is None else Position(below)
        page = self._unique(track, self._page(track, behind, f"<= {top}"))
        settled_to = settled(marks, now_us, settle_us)
        count, below = complete([_number(v, track) for v in page.values], below, settled_to)
        all_taken = count == len(page.values)
        if all_taken and not page.full and settled_to is not None:
            below = settled_to if below is None else max(below, settled_to)
        kept = tuple(mark for mark in marks if below is None or mark[1] > below)
        state = State(track.column, None if below is None else str(below), marks=kept)
        return Answer(bodies_of(page.first(count).rows), state.text, all_taken and page.full)

    def _times(self, at: State, track: TrackColumn, now_us: int, *, zoned: bool) -> Answer:
        zone = None if zoned else ZoneInfo(track.time_zone)
        behind = _behind(at)
        if behind is None and track.start_from is not None:
            start = datetime.fromisoformat(track.start_from)
            behind = Position(time_constant(start, zone), included=True)
        settled_to = EPOCH + timedelta(microseconds=now_us)
        settled_to -= timedelta(seconds=track.settle_seconds)
        bound = self._statements.dialect.constant(time_bound(settled_to, zone))
        page = self._page(track, behind, f"< {bound}")
        if track.key is not None:
            page = self._unique(track, page)
        elif page.full:
            page = self._whole_groups(page, track, behind, f"< {bound}")
        if not page.values:
            return Answer(bodies_of(page.rows), at.text)
        state = State(track.column, page.values[-1])
        if page.keys:
            state = replace(state, key=page.keys[-1], keyed_by=track.key)
        return Answer(bodies_of(page.rows), state.text, page.full)

    def _whole_groups(
        self, page: Page, track: TrackColumn, behind: Position | None, until: str
    ) -> Page:
        """Return a full page without the last value's rows. If all rows have it, request a larger
        page. Raises UserError if that is full of it too."""
        if not page.last_group:
            page = self._page(track, behind, until, LARGEST)
        if not page.full:
            return page
        if not page.last_group:
            raise UserError(
                f"{len(page.values)} or more rows have {page.values[0]} in {track.column}, which "
                "is too much for one answer: set `track: key` to a column that is unique"
            )
        return page.first(page.last_group)

    def _page(
        self, track: TrackColumn, behind: Position | None, until: str, times: int = 1
    ) -> Page:
        """Return the first rows. A database may send other rows first: then fewer are requested."""
        count, most = self._page_rows * times, PAGE_BYTES * times
        while True:
            result = self._query(self._statements.page(track, behind, until, count), most)
            page = Page.of(result, count, keyed=track.key is not None)
            if page is not None:
                return page
            if not result.cut:
                raise CorruptError("the database does not return row numbers 1, 2, 3 as requested")
            count = max(1, result.rows.num_rows // 2)

    def _unique(self, track: TrackColumn, page: Page) -> Page:
        """Return the page; a full one without its last row, so that the next page begins with it
        and shows rows equal to it. Raises UserError for equal rows."""
        if page.duplicate is not None:
            values = " and ".join(map(str, page.duplicate))
            names = " and ".join(filter(None, (track.column, track.key)))
            raise UserError(
                f"several rows have {values} in {names}: track a column that is unique, or a time "
                "with a unique `key`"
            )
        count = len(page.values)
        return page.first(count - 1) if page.full and count > 1 else page


def _behind(at: State) -> Position | None:
    if at.value is None:
        return None
    return Position(int(at.value) if _WHOLE.fullmatch(at.value) else at.value, at.key)


def _is_number(column: pa.Field, track: TrackColumn) -> bool:
    """Return whether the column holds numbers, not times. Raises UserError for other types."""
    kind = column.type
    decimal = pa.types.is_decimal(kind) and kind.scale == 0
    number = pa.types.is_integer(kind) or decimal or json_text.is_number(column)
    if not number and not pa.types.is_timestamp(kind):
        raise UserError(
            f"{track.column} is of the type {kind}, by which rows cannot be tracked: "
            "expected whole numbers or times"
        )
    if track.kind is not None and number != (track.kind == "integer"):
        raise UserError(f"{track.column} is of the type {kind}, not of the kind {track.kind}")
    if track.start_from is not None and number != bool(_WHOLE.fullmatch(track.start_from)):
        raise UserError(
            f"{track.column} is of the type {kind}, and cannot begin at {track.start_from}"
        )
    return number


def _number(text: str, track: TrackColumn) -> int:
    if not _WHOLE.fullmatch(text):
        raise UserError(f"{track.column} has {text}: expected whole numbers")
    return int(text)


def bodies_of(rows: pa.Table) -> pa.BinaryArray:
    texts = [text for batch in rows.to_batches() for text in texts_of(batch)]
    return pa.concat_arrays(texts) if texts else pa.array([], pa.binary())


def _keys(column: pa.ChunkedArray) -> list[str | int]:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
        raise UserError(f"`track: key` is a column with {kind}: expected numbers or texts")
    if column.null_count:
        raise UserError("`track: key` is a column with nulls: expected one that is unique")
    keys: list[str | int] = column.to_pylist()
    return keys
