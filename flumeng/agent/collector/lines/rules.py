"""A flow's rules for joining lines, as executors use them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.agent.collector.lines.groups import Limits
from flumeng.agent.collector.lines.machine import Flags, Machine, Numbers
from flumeng.config.multiline import PIECE_SECONDS, Container, Multiline
from flumeng.config.stack_traces import INDENTED, ISO_LOG_LINE, LOG, OTHER, TRACES, Kinds, Traces
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class Rules:
    """``pattern`` matches each line that starts an event, or with ``continues`` each line that
    continues one; ``traces`` replaces the pattern. ``key``: columns and attributes that identify a
    stream. Lines of a ``container`` are unwrapped first. ``alone``: each message is an event."""

    pattern: str
    continues: bool
    key: tuple[str, ...]
    timeout_us: int
    max_lines: int
    max_bytes: int
    traces: Traces | None = None
    container: Container | None = None
    alone: bool = False

    @classmethod
    def of(cls, multiline: Multiline) -> Rules:
        return cls(
            *multiline.pattern,
            multiline.key,
            round(multiline.timeout_seconds * 1e6),
            multiline.max_lines,
            multiline.max_bytes,
            None if multiline.preset is None else TRACES[multiline.preset],
            multiline.container,
            multiline.messages_alone,
        )

    @property
    def limits(self) -> Limits:
        return Limits(self.timeout_us, self.max_lines, self.max_bytes, round(PIECE_SECONDS * 1e6))

    @cached_property
    def machine(self) -> Machine | None:
        return None if self.traces is None else Machine.of(self.traces)

    def check(self) -> None:
        """Raise UserError when RE2 does not accept the pattern."""
        try:
            self.starts(pa.array([b""]))
        except pa.ArrowInvalid as error:
            raise UserError(f"multiline: {error}") from error

    def starts(self, bodies: pa.Array) -> Flags:
        """Return which lines start an event by pattern; none with ``traces``, all if ``alone``."""
        if self.traces is not None or self.alone:
            return np.full(len(bodies), self.alone)
        starts = pc.match_substring_regex(bodies, pattern=self.pattern)
        if self.continues:
            starts = pc.invert(starts)
        return _flags(pc.fill_null(starts, True))  # a null body starts an event

    def kinds(self, bodies: pa.Array) -> Numbers | None:
        """Return the lines' kinds for the machine, if any. Frequent kinds are matched first."""
        if self.traces is None or self.machine is None:
            return None
        patterns = self.traces.kinds
        order = [kind for kind, _ in patterns]
        indented, log = order.index(INDENTED), order.index(LOG)
        kinds = np.full(len(bodies), self.machine.names.index(OTHER), np.int64)
        spaced = pc.or_(pc.starts_with(bodies, " "), pc.starts_with(bodies, "\t"))
        rows = np.flatnonzero(_flags(pc.fill_null(spaced, False)))
        kinds[rows] = self.machine.names.index(INDENTED)
        self._set_kinds(kinds, rows, bodies, patterns[:indented])
        rows = np.flatnonzero(_flags(pc.fill_null(pc.invert(spaced), True)))
        matches = _matched(bodies.take(pa.array(rows)), ISO_LOG_LINE)
        kinds[rows[matches]] = self.machine.names.index(LOG)
        rows = rows[~matches]
        rare = "|".join(f"(?:{pattern})" for _, pattern in patterns[:log])
        matches = _matched(bodies.take(pa.array(rows)), rare)
        self._set_kinds(kinds, rows[matches], bodies, patterns[:log])
        self._set_kinds(kinds, rows[~matches], bodies, patterns[log:])
        return kinds

    def _set_kinds(self, kinds: Numbers, rows: Numbers, bodies: pa.Array, patterns: Kinds) -> None:
        assert self.machine is not None
        left = bodies.take(pa.array(rows))
        for kind, pattern in patterns:
            if not len(rows):
                return
            matches = _matched(left, pattern)
            kinds[rows[matches]] = self.machine.names.index(kind)
            rows, left = rows[~matches], left.filter(pa.array(~matches))

    def streams(self, lines: pa.RecordBatch, of_container: pa.Array | None = None) -> Numbers:
        """Return a number for each line that identifies its stream."""
        together = np.zeros(lines.num_rows, np.int64)
        attrs = _Attributes(lines["attrs"])
        for name in (*self.key, of_container):
            if name is None:
                continue
            if isinstance(name, pa.Array):
                numbers, count = _numbered(name)
            elif name in lines.schema.names:
                numbers, count = _numbered(lines[name])
            else:
                numbers, count = attrs.numbered(name)
            if count > 1:
                together = together * count + numbers
                if together.max(initial=0) >= 2**31:  # the next product would not fit
                    together = np.unique(together, return_inverse=True)[1].astype(np.int64)
        return together


def _matched(bodies: pa.Array, pattern: str) -> Flags:
    return _flags(pc.fill_null(pc.match_substring_regex(bodies, pattern=pattern), False))


def _numbered(values: pa.Array) -> tuple[Numbers, int]:
    encoded = values.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


class _Attributes:
    """The attributes of all lines. Their names are dictionary-encoded once for all keys."""

    def __init__(self, attrs: pa.MapArray) -> None:
        self._attrs = attrs
        self._offsets = attrs.offsets.to_numpy()
        self._low = int(self._offsets[0])
        keys = attrs.keys.slice(self._low, int(self._offsets[-1]) - self._low).dictionary_encode()
        self._codes, self._names = keys.indices.to_numpy(), keys.dictionary

    def numbered(self, name: str) -> tuple[Numbers, int]:
        """Return each line's number for its value of an attribute, 0 for none; and their count."""
        numbers = np.zeros(len(self._attrs), np.int64)
        indexes = np.flatnonzero(self._codes == self._names.index(name).as_py())
        if not len(indexes):
            return numbers, 1
        indexes += self._low
        encoded, count = _numbered(self._attrs.items.take(pa.array(indexes)))
        numbers[np.searchsorted(self._offsets, indexes, side="right") - 1] = encoded + 1
        return numbers, count + 1


def _flags(values: pa.Array) -> Flags:
    flags: Flags = values.to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
    return flags
