"""Groups of lines as events: the body of all, and all else of the first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.inputs import Progress
from flumeng.inputs.lines.groups import (
    ENDED,
    MAX_BYTES,
    MAX_LINES,
    TIMEOUT,
    Groups,
    Limits,
    Lines,
    group,
)
from flumeng.inputs.lines.machine import Numbers
from flumeng.inputs.lines.rules import Rules

LINES, CLOSED = "lines", "multiline_closed"
"""What an event's attributes tell: how many lines it has, and why it has no more when that is not
since the next one began."""
REASONS = {TIMEOUT: "timeout", MAX_LINES: "max_lines", MAX_BYTES: "max_bytes"}
BATCH_BYTES = 64 * 2**20
"""About as much is joined into one batch."""


def find_groups(
    lines: pa.RecordBatch, at: Progress, end: int, rules: Rules, *, flush: bool
) -> Groups:
    """What is to be emitted of ``lines``, which are all of [``at.offset``, ``end``)."""
    bodies = lines["body"]
    columns = Lines(
        offsets=lines["seq"].to_numpy(),
        times=pc.fill_null(lines["ts"].cast(pa.int64()), 0).to_numpy(),
        streams=rules.streams(lines),
        starts=rules.starts(bodies),
        sizes=pc.fill_null(pc.binary_length(bodies), 0).to_numpy().astype(np.int64),
        kinds=rules.kinds(bodies),
    )
    limits = Limits(rules.timeout_us, rules.max_lines, rules.max_bytes)
    return group(columns, at, end, limits, flush=flush, machine=rules.machine)


def join(lines: pa.RecordBatch, groups: Groups) -> Iterator[pa.RecordBatch]:
    """The events, in the columns of ``lines`` and in the order of the groups. None is empty."""
    counts = groups.counts
    if not len(counts):
        return
    reasons = told_of(groups)
    sizes = pc.fill_null(pc.binary_length(lines["body"]), 0).to_numpy().astype(np.int64)
    ends = np.cumsum(counts)
    volume = np.cumsum(sizes[groups.rows])[ends - 1] // BATCH_BYTES
    first = 0
    for last in np.append(np.flatnonzero(np.diff(volume)) + 1, len(counts)):
        rows = groups.rows[ends[first] - counts[first] : ends[last - 1]]
        yield _joined(lines, rows, counts[first:last], reasons[first:last])
        first = last


def told_of(groups: Groups) -> Numbers:
    """The reasons that people are told: that nothing came behind a line alone is none."""
    alone = (groups.reasons == TIMEOUT) & (groups.counts == 1)
    return np.where(alone, ENDED, groups.reasons)


def _joined(
    lines: pa.RecordBatch, rows: Numbers, counts: Numbers, reasons: Numbers
) -> pa.RecordBatch:
    ends = np.cumsum(counts)
    heads = pa.array(rows[ends - counts])
    columns = []
    for field in lines.schema:
        column = lines[field.name]
        if field.name == "body":
            columns.append(_bodies(column, rows, ends, counts))
        elif field.name == "attrs":
            columns.append(_attributes(column.take(heads), counts, reasons))
        else:
            columns.append(column.take(heads))
    return pa.RecordBatch.from_arrays(columns, schema=lines.schema)


def _bodies(bodies: pa.Array, rows: Numbers, ends: Numbers, counts: Numbers) -> pa.Array:
    taken = bodies.take(pa.array(rows))
    if len(rows) == len(counts):
        return taken
    offsets = pa.array(np.concatenate(([0], ends)).astype(np.int32))
    whole = pa.ListArray.from_arrays(offsets, pc.fill_null(taken, b""))
    return pc.binary_join(whole, b"\n")


def _attributes(attrs: pa.MapArray, counts: Numbers, reasons: Numbers) -> pa.MapArray:
    """``attrs`` with LINES, and CLOSED where a group has not just ended, behind their own."""
    offsets = attrs.offsets.to_numpy().astype(np.int64)
    low, high = offsets[0], offsets[-1]
    keys, items = (part.slice(low, high - low) for part in (attrs.keys, attrs.items))
    kept = ~pc.is_in(keys, value_set=pa.array([LINES, CLOSED])).to_numpy(zero_copy_only=False)
    before = np.concatenate(([0], np.cumsum(kept)))
    old = before[offsets[1:] - low] - before[offsets[:-1] - low]
    closed = np.flatnonzero(reasons)
    new = old + 1
    new[closed] += 1
    borders = np.concatenate(([0], np.cumsum(new)))
    places = np.full(int(borders[-1]), -1)
    count_places, closed_places = borders[:-1] + old, borders[1:][closed] - 1
    places[count_places] = len(keys) + np.arange(len(counts))
    places[closed_places] = len(keys) + len(counts) + np.arange(len(closed))
    places[places < 0] = np.flatnonzero(kept)
    numbers = pc.dictionary_encode(pa.array(counts))
    said = numbers.dictionary.cast(pa.string()).take(numbers.indices)
    why = pa.array([REASONS[reason] for reason in reasons[closed].tolist()], pa.string())
    names = pa.array([LINES, CLOSED]).take(pa.array(np.repeat([0, 1], [len(counts), len(closed)])))
    taken = pa.array(places)
    return pa.MapArray.from_arrays(
        pa.array(borders.astype(np.int32)),
        pa.concat_arrays([keys, names]).take(taken),
        pa.concat_arrays([items, said, why]).take(taken),
    )
