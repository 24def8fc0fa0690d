"""Turns groups of lines into events: the bodies joined, all other columns of the first line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.agent.collector.lines.containers import Unwrapped
from flumeng.agent.collector.lines.groups import (
    ENDED,
    MAX_BYTES,
    MAX_LINES,
    TIMEOUT,
    Groups,
    Lines,
    Pieces,
    group,
)
from flumeng.agent.collector.lines.machine import Flags, Numbers
from flumeng.agent.collector.lines.pauses import InStreams
from flumeng.agent.collector.lines.rules import Rules
from flumeng.connectors.api.ranged import Progress

LINES, CLOSED = "lines", "multiline_closed"
"""Attributes of an event: its number of lines, and why it was closed early."""
REASONS = {TIMEOUT: "timeout", MAX_LINES: "max_lines", MAX_BYTES: "max_bytes"}
BATCH_BYTES = 64 * 2**20


def find_groups(
    lines: pa.RecordBatch,
    at: Progress,
    end: int,
    rules: Rules,
    *,
    flush: bool,
    unwrapped: Unwrapped | None = None,
) -> Groups:
    """Return the groups to emit. ``lines`` are all lines of [``at.offset``, ``end``)."""
    bodies, of_container = lines["body"], None
    if unwrapped is not None:
        bodies, of_container = unwrapped.texts, unwrapped.streams
        if rules.alone and not unwrapped.unfinished.any():
            return _each_alone(lines["seq"].to_numpy(), at, end)
    sizes = pc.fill_null(pc.binary_length(bodies), 0).to_numpy().astype(np.int64)
    columns = Lines(
        offsets=lines["seq"].to_numpy(),
        times=pc.fill_null(lines["ts"].cast(pa.int64()), 0).to_numpy(),
        streams=rules.streams(lines, of_container),
        starts=np.zeros(len(sizes), np.bool_),
        sizes=sizes,
    )
    if unwrapped is None:
        marked = replace(columns, starts=rules.starts(bodies), kinds=rules.kinds(bodies))
    else:
        marked = _in_pieces(columns, bodies, unwrapped.unfinished, rules, flush=flush)
    return group(marked, at, end, rules.limits, flush=flush, machine=rules.machine)


def _each_alone(offsets: Numbers, at: Progress, end: int) -> Groups:
    rows = np.flatnonzero(offsets >= at.emitted)
    end = max(end, at.emitted)
    return Groups(rows, np.ones_like(rows), np.full_like(rows, ENDED), Progress(end, end))


def _in_pieces(
    lines: Lines, texts: pa.Array, unfinished: Flags, rules: Rules, *, flush: bool
) -> Lines:
    """Mark which lines are pieces of messages. Patterns are matched with whole messages."""
    patience = rules.limits.patience(unfinished, len(unfinished))
    streams = InStreams.of(lines.times, lines.streams, patience, flush=flush)
    continues = streams.following(unfinished)
    lines = replace(lines, pieces=Pieces(unfinished, continues, rules.alone))
    if rules.alone or not continues.any():
        starts = rules.starts(texts) & ~continues
        return replace(lines, starts=starts, kinds=rules.kinds(texts))
    begins = ~continues[streams.order]
    edges = np.flatnonzero(begins | streams.fresh)
    borders = pa.array(np.append(edges, len(begins)).astype(np.int32))
    pieces = pa.ListArray.from_arrays(borders, texts.take(pa.array(streams.order)))
    messages = pc.binary_join(pieces, b"").filter(pa.array(begins[edges]))
    rows = streams.order[edges[begins[edges]]]
    lines.starts[rows] = rules.starts(messages)
    kinds = rules.kinds(messages)
    if kinds is None:
        return lines
    of_lines = np.zeros(len(continues), np.int64)
    of_lines[rows] = kinds
    return replace(lines, kinds=of_lines)


def join(
    lines: pa.RecordBatch, groups: Groups, *, counted: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the groups' events in order; no batch is empty. ``counted``: add counts of lines."""
    counts = groups.counts
    if not len(counts):
        return
    sizes = pc.fill_null(pc.binary_length(lines["body"]), 0).to_numpy().astype(np.int64)
    ends = np.cumsum(counts)
    volume = np.cumsum(sizes[groups.rows])[ends - 1] // BATCH_BYTES
    first = 0
    for last in np.append(np.flatnonzero(np.diff(volume)) + 1, len(counts)):
        begin, end = ends[first] - counts[first], ends[last - 1]
        part = replace(
            groups,
            rows=groups.rows[begin:end],
            counts=counts[first:last],
            reasons=groups.reasons[first:last],
        )
        yield _joined(lines, part, counted=counted)
        first = last


def _joined(lines: pa.RecordBatch, groups: Groups, *, counted: bool) -> pa.RecordBatch:
    rows, counts = groups.rows, groups.counts
    heads = np.cumsum(counts) - counts
    firsts = pa.array(rows[heads])
    begins = np.ones(len(rows), np.bool_)
    if groups.continues is not None:
        begins = ~groups.continues[rows]
        begins[heads] = True
    numbers = np.cumsum(begins)
    messages = np.diff(np.append(numbers[heads], numbers[-1] + 1))
    columns = []
    for field in lines.schema:
        column = lines[field.name]
        if field.name == "body":
            texts = _together(column.take(pa.array(rows)), np.flatnonzero(begins), b"")
            columns.append(_together(texts, np.cumsum(messages) - messages, b"\n"))
        elif field.name == "attrs":
            attrs = column.take(firsts)
            if counted or groups.reasons.any():
                attrs = _attributes(attrs, messages if counted else None, groups.reasons)
            columns.append(attrs)
        else:
            columns.append(column.take(firsts))
    return pa.RecordBatch.from_arrays(columns, schema=lines.schema)


def _together(texts: pa.Array, begins: Numbers, between: bytes) -> pa.Array:
    if len(begins) == len(texts):
        return texts
    borders = pa.array(np.append(begins, len(texts)).astype(np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(borders, pc.fill_null(texts, b"")), between)


def _attributes(attrs: pa.MapArray, counts: Numbers | None, reasons: Numbers) -> pa.MapArray:
    """Append CLOSED to groups closed early, and LINES when ``counts`` are given."""
    offsets = attrs.offsets.to_numpy().astype(np.int64)
    low, high = offsets[0], offsets[-1]
    keys, items = (part.slice(low, high - low) for part in (attrs.keys, attrs.items))
    kept = ~pc.is_in(keys, value_set=pa.array([LINES, CLOSED])).to_numpy(zero_copy_only=False)
    before = np.concatenate(([0], np.cumsum(kept)))
    old = before[offsets[1:] - low] - before[offsets[:-1] - low]
    closed = np.flatnonzero(reasons)
    counted = len(attrs) if counts is not None else 0
    new = old + bool(counted)
    new[closed] += 1
    borders = np.concatenate(([0], np.cumsum(new)))
    places = np.full(int(borders[-1]), -1)
    count_places, closed_places = borders[:-1] + old, borders[1:][closed] - 1
    places[count_places[:counted]] = len(keys) + np.arange(counted)
    places[closed_places] = len(keys) + counted + np.arange(len(closed))
    places[places < 0] = np.flatnonzero(kept)
    numbers = pc.dictionary_encode(pa.array(counts if counts is not None else [], pa.int64()))
    counts_text = numbers.dictionary.cast(pa.string()).take(numbers.indices)
    why = pa.array([REASONS[reason] for reason in reasons[closed].tolist()], pa.string())
    names = pa.array([LINES, CLOSED]).take(pa.array(np.repeat([0, 1], [counted, len(closed)])))
    taken = pa.array(places)
    return pa.MapArray.from_arrays(
        pa.array(borders.astype(np.int32)),
        pa.concat_arrays([keys, names]).take(taken),
        pa.concat_arrays([items, counts_text, why]).take(taken),
    )
