"""The filter ``redact``: masks, hashes or removes personal data in texts. Replacements are not
searched again, since a hash may look like a match."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events import attributes
from flumeng.events.byte_column import Mask
from flumeng.events.columns import changed
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.contract import EachBatch, Filter
from flumeng.filters.options.redact import HASH_CHARACTERS, MASK, Redact
from flumeng.filters.options.templates import ATTRIBUTE
from flumeng.filters.personal_data import FINDERS, Check, Finder
from flumeng.platform import secrets
from flumeng.platform.errors import UserError
from flumeng.platform.scrubbing import Secret

LEAST_SECRET = 16
Replace = Callable[[bytes], bytes]


class RedactFilter(Filter):
    def __init__(self, options: Redact) -> None:
        self._options = options
        self._key: Secret | None = None
        if options.secret is not None:
            self._key = secrets.resolve(options.secret)
            if len(self._key) < LEAST_SECRET:
                raise UserError(
                    f"redact: the key in {options.secret} has {len(self._key)} characters, and "
                    f"needs at least {LEAST_SECRET}"
                )
        finders = [FINDERS[kind] for kind in options.kinds]
        if options.patterns:
            finders.append(Finder("|".join(f"(?:{pattern})" for pattern in options.patterns)))
        self._finders = tuple(finders)
        try:
            for finder in finders:
                pc.match_substring_regex(pa.array([""]), finder.pattern)
        except pa.ArrowInvalid as error:
            raise UserError(f"redact: a pattern is not valid in RE2: {error}") from error

    def apply(self, batch: LazyBatch) -> LazyBatch:
        stage = RedactStage(self._options.columns, self._finders, self._options.mode, self._key)
        return batch.arrow(stage, batch.schema)


@dataclass(frozen=True)
class RedactStage(EachBatch):
    """Replaces the matches of ``finders`` in ``columns``; without finders whole values."""

    columns: tuple[str, ...]
    finders: tuple[Finder, ...]
    mode: str
    key: Secret | None = None

    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self.columns:
            attribute = ATTRIBUTE.fullmatch(name)
            if attribute is None or name in batch.schema.names:
                batch = changed(batch, {name: self._redacted(batch[name])})
                continue
            attrs, key = batch["attrs"], attribute["key"]
            values = self._redacted(attributes.value(attrs, key))
            attrs = attributes.put(attributes.without(attrs, [key]), key, values)
            batch = changed(batch, {"attrs": attrs})
        return batch

    def _redacted(self, values: pa.Array) -> pa.Array:
        if self.finders:
            return redacted(values, self.finders, self._replace)
        if self.mode == "remove":
            return pa.nulls(len(values), values.type)
        replaced = _each(values.cast(pa.binary()), self._replace)
        return replaced.cast(values.type)

    def _replace(self, match: bytes) -> bytes:
        if self.mode == "hash":
            assert self.key is not None
            key = self.key.encode("utf-8", "surrogateescape")
            return hmac.digest(key, match, "sha256").hex()[:HASH_CHARACTERS].encode()
        return MASK.encode() if self.mode == "mask" else b""


def redacted(values: pa.Array, finders: tuple[Finder, ...], replace: Replace) -> pa.Array:
    """Replace the matches of ``finders`` in ``values``, texts or bytes. Nulls stay."""
    matching = np.zeros(len(values), np.bool_)
    for finder in finders:
        matching |= _matches(values, finder.pattern)
    if not matching.any():
        return values
    hits = pa.array(np.flatnonzero(matching))
    pieces = _Pieces(values.take(hits))
    for finder in finders:
        pieces.replace(finder, replace)
    places = np.arange(len(values))
    places[matching] = len(values) + np.arange(len(hits))
    return pa.concat_arrays([values, pieces.joined()]).take(pa.array(places))


class _Pieces:
    """The values of a column cut into pieces; ``_closed`` marks pieces that are replacements."""

    def __init__(self, values: pa.Array) -> None:
        self._type = values.type
        self._rows = len(values)
        self._row_of = np.arange(len(values))
        self._pieces = values
        self._closed: Mask = np.zeros(len(values), np.bool_)
        self._mark = _mark(values)

    def replace(self, finder: Finder, replace: Replace) -> None:
        candidates = ~self._closed & _matches(self._pieces, finder.pattern)
        if not candidates.any():
            return
        texts = self._pieces.filter(pa.array(candidates))
        marked = pc.replace_substring_regex(texts, finder.pattern, rf"{self._mark}\0{self._mark}")
        matching = self._cut(candidates, marked)
        if finder.check is not None and matching.any():
            texts = self._pieces.filter(pa.array(matching)).cast(pa.binary())
            mark = _Marking(finder.check, self._mark.encode())
            matching = self._cut(matching, _each(texts, mark).cast(self._type))
        if matching.any():
            texts = self._pieces.filter(pa.array(matching)).cast(pa.binary())
            self._pieces = pc.replace_with_mask(
                self._pieces, pa.array(matching), _each(texts, replace).cast(self._type)
            )
            self._closed |= matching

    def joined(self) -> pa.Array:
        ends = np.searchsorted(self._row_of, np.arange(self._rows + 1)).astype(np.int32)
        rows = pa.ListArray.from_arrays(pa.array(ends), self._pieces)
        return pc.binary_join(rows, pa.scalar("", self._type))

    def _cut(self, which: Mask, marked: pa.Array) -> Mask:
        """Replace the pieces ``which`` by parts of ``marked``; return the parts between marks."""
        parts = pc.split_pattern(marked, self._mark)
        counts = np.ones(len(which), np.int64)
        counts[which] = pc.list_value_length(parts).to_numpy(False)
        first = np.cumsum(counts) - counts
        order = np.empty(int(counts.sum()), np.int64)
        order[first[~which]] = np.flatnonzero(~which)
        is_part = np.repeat(which, counts)
        order[is_part] = len(which) + np.arange(int(is_part.sum()))
        self._pieces = pa.concat_arrays([self._pieces, parts.flatten()]).take(pa.array(order))
        self._row_of = np.repeat(self._row_of, counts)
        self._closed = np.repeat(self._closed, counts)
        number = np.arange(len(order)) - np.repeat(first, counts)
        between_marks: Mask = is_part & (number % 2 == 1)
        return between_marks


@dataclass(frozen=True)
class _Marking:
    check: Check
    mark: bytes

    def __call__(self, candidate: bytes) -> bytes:
        parts, position = [], 0
        for begin, end in self.check(candidate.decode("latin-1")):
            parts += [candidate[position:begin], self.mark, candidate[begin:end], self.mark]
            position = end
        return b"".join([*parts, candidate[position:]])


def _each(values: pa.Array, function: Replace) -> pa.Array:
    """Apply ``function`` to each value, once for each distinct one."""
    encoded = values.dictionary_encode()
    results = [function(value) for value in encoded.dictionary.to_pylist()]
    return pa.array(results, pa.binary()).take(encoded.indices)


def _matches(values: pa.Array, pattern: str) -> Mask:
    matching: Mask = pc.match_substring_regex(values, pattern).fill_null(False).to_numpy(False)
    return matching


def _mark(values: pa.Array) -> str:
    """Return a delimiter that is in none of ``values`` and does not overlap itself."""
    mark = "\x02"
    while pc.any(pc.match_substring(values, mark)).as_py():
        mark = f"\x02{uuid4().hex}"
    return mark
