"""The filter ``time``: reads times from a column of texts or numbers. A row that matches no format
keeps its time and gets an error in ``attrs.parse_error``; null is no error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import note
from flumeng.events.byte_column import Mask, Positions
from flumeng.events.columns import changed, replaced
from flumeng.events.lazy_batch import LazyBatch, Stage
from flumeng.filters.contract import EachBatch, Filter
from flumeng.filters.options.time import Time
from flumeng.filters.options.time_formats import UNITS
from flumeng.filters.refused_times import Bounded
from flumeng.filters.time_texts import TextFormat, of_numbers
from flumeng.filters.timestamps import to_utc
from flumeng.platform.errors import UserError

ROWS_AT_A_TIME = 8192
MOMENT = pa.timestamp("us", "UTC")


class TimeFilter(Filter):
    def __init__(self, options: Time) -> None:
        try:
            to_utc(np.zeros(1, np.int64), options.timezone, np.zeros(1, np.int64))
        except pa.ArrowInvalid as error:
            raise UserError(
                f"time: this host has no data of the time zone {options.timezone}: install tzdata"
            ) from error
        self._options = options

    def apply(self, batch: LazyBatch) -> LazyBatch:
        given = self._options
        stage: Stage = TimeStage(given.column, given.to, given.formats, given.timezone)
        if given.to == "ts":
            stage = Bounded(stage, given.ts_within_seconds, ROWS_AT_A_TIME)
        return batch.arrow(stage, replaced(batch.schema, pa.field(given.to, MOMENT)))


@dataclass(frozen=True)
class TimeStage(EachBatch):
    column: str
    to: str
    formats: tuple[str, ...]
    timezone: str

    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch[self.column]
        received = batch["ts"].cast(pa.int64()).fill_null(0).to_numpy(False)
        micros, valid = self._moments(values, received)
        times = pa.array(micros, pa.int64(), mask=~valid).cast(MOMENT)
        if self.to in batch.schema.names:
            times = pc.coalesce(times, batch[self.to])
        wrong = values.is_valid().to_numpy(False) & ~valid
        reason = pa.scalar(f"time: {self.column} is of no format", pa.string())
        reasons = pc.if_else(pa.array(wrong), reason, None)
        return changed(batch, {self.to: times, "attrs": note(batch["attrs"], reasons)})

    def _moments(self, values: pa.Array, received: Positions) -> tuple[Positions, Mask]:
        micros = np.zeros(len(values), np.int64)
        valid = np.zeros(len(values), np.bool_)
        left = np.flatnonzero(values.is_valid().to_numpy(False))
        for name in self.formats:
            if not len(left):
                break
            part = values if len(left) == len(values) else values.take(pa.array(left))
            times, fits = self._in_format(name, part, received[left])
            micros[left[fits]], valid[left[fits]] = times[fits], True
            left = left[~fits]
        return micros, valid

    def _in_format(self, name: str, part: pa.Array, received: Positions) -> tuple[Positions, Mask]:
        if pa.types.is_string(part.type):
            return TextFormat.named(name, self.timezone).read(part, received)
        return of_numbers(part, UNITS[name])
