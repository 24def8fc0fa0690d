"""Which lines belong together: what a flow says of it, as executors use it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.errors import UserError
from flumeng.inputs.lines.machine import Flags, Machine, Numbers
from flumeng.spec.multiline import Multiline
from flumeng.spec.traces import OTHER, TRACES, Traces


@dataclass(frozen=True)
class Rules:
    """``pattern`` is found in each line that starts an event, or in each that ``continues`` one;
    or else ``traces`` says which lines belong together.

    ``key``: the columns and attributes by which streams of lines are told apart. Two lines of a
    stream with more than ``timeout_us`` between them are of two events.
    """

    pattern: str
    continues: bool
    key: tuple[str, ...]
    timeout_us: int
    max_lines: int
    max_bytes: int
    traces: Traces | None = None

    @classmethod
    def of(cls, multiline: Multiline) -> Rules:
        return cls(
            *multiline.pattern,
            multiline.key,
            round(multiline.timeout_seconds * 1e6),
            multiline.max_lines,
            multiline.max_bytes,
            None if multiline.preset is None else TRACES[multiline.preset],
        )

    @cached_property
    def machine(self) -> Machine | None:
        return None if self.traces is None else Machine.of(self.traces)

    def check(self) -> None:
        """Raises UserError when RE2 does not take the pattern."""
        try:
            self.starts(pa.array([b""]))
        except pa.ArrowInvalid as error:
            raise UserError(f"multiline: {error}") from error

    def starts(self, bodies: pa.Array) -> Flags:
        """Which lines start an event, when this is known of each by itself. A line is bytes: no
        encoding is assumed."""
        if self.traces is not None:
            return np.zeros(len(bodies), np.bool_)
        found = pc.match_substring_regex(bodies, pattern=self.pattern)
        if self.continues:
            found = pc.invert(found)
        return _flags(pc.fill_null(found, True))  # Arrow takes it so

    def kinds(self, bodies: pa.Array) -> Numbers | None:
        """The kinds of the lines, when a machine says which start an event."""
        if self.traces is None or self.machine is None:
            return None
        names = self.machine.names
        kinds = np.full(len(bodies), names.index(OTHER), np.int64)
        rows, left = np.arange(len(bodies)), bodies
        for kind, pattern in self.traces.kinds:
            found = _flags(pc.fill_null(pc.match_substring_regex(left, pattern=pattern), False))
            kinds[rows[found]] = names.index(kind)
            rows, left = rows[~found], left.filter(pa.array(~found))
        return kinds

    def streams(self, lines: pa.RecordBatch) -> Numbers:
        """A number for each line, which lines of one stream have in common."""
        together = np.zeros(lines.num_rows, np.int64)
        for name in self.key:
            if name in lines.schema.names:
                numbers, count = _numbered(lines[name])
            else:
                numbers, count = _numbered_attribute(lines["attrs"], name)
            if count > 1:
                together = together * count + numbers
                if together.max(initial=0) >= 2**31:  # the next product would not fit
                    together = np.unique(together, return_inverse=True)[1].astype(np.int64)
        return together


def _numbered(values: pa.Array) -> tuple[Numbers, int]:
    """A number for each value, and how many there are. Null is a value of its own."""
    encoded = values.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def _numbered_attribute(attrs: pa.MapArray, name: str) -> tuple[Numbers, int]:
    """The same of an attribute; 0 where a line has none."""
    offsets = attrs.offsets.to_numpy()
    low, high = int(offsets[0]), int(offsets[-1])
    found = np.flatnonzero(_flags(pc.equal(attrs.keys.slice(low, high - low), name)))
    numbers = np.zeros(len(attrs), np.int64)
    if not len(found):
        return numbers, 1
    found += low
    encoded, count = _numbered(attrs.items.take(pa.array(found)))
    rows = np.searchsorted(offsets, found, side="right") - 1
    numbers[rows] = encoded + 1
    return numbers, count + 1


def _flags(values: pa.Array) -> Flags:
    flags: Flags = values.to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
    return flags
