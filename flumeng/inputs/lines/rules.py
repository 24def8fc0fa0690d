"""Which lines belong together: what a flow says of it, as executors use it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.errors import UserError
from flumeng.spec.multiline import Multiline

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Rules:
    """``pattern`` is found in each line that starts an event, or in each that ``continues`` one.

    ``key``: the columns and attributes by which streams of lines are told apart. Two lines of a
    stream with more than ``timeout_us`` between them are of two events.
    """

    pattern: str
    continues: bool
    key: tuple[str, ...]
    timeout_us: int
    max_lines: int
    max_bytes: int

    @classmethod
    def of(cls, multiline: Multiline) -> Rules:
        return cls(
            *multiline.pattern,
            multiline.key,
            round(multiline.timeout_seconds * 1e6),
            multiline.max_lines,
            multiline.max_bytes,
        )

    def check(self) -> None:
        """Raises UserError when RE2 does not take the pattern."""
        try:
            self.starts(pa.array([b""]))
        except pa.ArrowInvalid as error:
            raise UserError(f"multiline: {error}") from error

    def starts(self, bodies: pa.Array) -> Flags:
        """Which lines start an event. A line is bytes: no encoding is assumed."""
        found = pc.match_substring_regex(bodies, pattern=self.pattern)
        if self.continues:
            found = pc.invert(found)
        return _flags(pc.fill_null(found, True))  # Arrow takes it so

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
