"""A set of 64-bit hashes in buckets by age, so that a change touches few buckets. The last hashes
are in the bucket ``tail``, which is moved into the newest bucket when full. If only the first
changed buckets are stored, some hashes are there twice, or not forgotten yet."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flumeng.platform.errors import CorruptError

TAIL = "tail"

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(frozen=True)
class Sizes:
    bucket: int
    tail: int


SMALL = Sizes(bucket=4_400, tail=256)
"""For ZooKeeper: a bucket takes up to ``SMALL_BYTES``, below 50 KB as Base64."""
SMALL_BYTES = 36_000
LARGE = Sizes(bucket=100_000, tail=1_024)
"""For files of 600 KB each; their tail is in ZooKeeper."""
MOST_BYTES = 16 * LARGE.bucket
"""Limit of a decompressed bucket: twice the largest."""
_IN_TAIL = 0
"""The number of the tail; a bucket's number is its name plus one."""


class SeenHashes:
    """The set, built from the buckets of ``changed``, with the same or other ``sizes``."""

    def __init__(self, buckets: Mapping[str, bytes], sizes: Sizes = SMALL) -> None:
        self._sizes = sizes
        read = {_number_of(name): _decoded(name, data) for name, data in buckets.items()}
        counts = {number: len(hashes) for number, hashes in read.items()}
        every = np.concatenate([np.empty(0, np.uint64), *read.values()])
        numbers = np.repeat(np.fromiter(read, np.uint32, len(read)), list(counts.values()))
        order = np.argsort(every, kind="stable")
        every, numbers = every[order], numbers[order]
        first = np.ones(len(every), np.bool_)
        first[1:] = every[1:] != every[:-1]
        self._hashes: Hashes = every[first]
        """Sorted. ``_numbers`` and ``_met`` are parallel: bucket number, and whether it was met."""
        self._numbers: Numbers = numbers[first]
        self._met: Flags = np.zeros(len(self._hashes), np.bool_)
        self._changed: set[int] = set()
        self._counts: dict[int, int] = {}
        """Counts of hashes by bucket number, at least one each."""
        self._count()

    def __len__(self) -> int:
        return len(self._hashes)

    def meet(self, hashes: Hashes) -> Flags:
        """Return for each hash whether it is known. Mark known hashes as met."""
        if not len(self._hashes):
            return np.zeros(len(hashes), np.bool_)
        indices = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        is_known: Flags = self._hashes[indices] == hashes
        self._met[indices[is_known]] = True
        return is_known

    def add(self, hashes: Hashes) -> None:
        """Add hashes. Known hashes are marked as met."""
        hashes = np.unique(hashes)
        hashes = hashes[~self.meet(hashes)]
        if not len(hashes):
            return
        indices = np.searchsorted(self._hashes, hashes) + np.arange(len(hashes))
        old = np.ones(len(self._hashes) + len(hashes), np.bool_)
        old[indices] = False
        self._hashes = _merged(old, self._hashes, hashes)
        self._numbers = _merged(old, self._numbers, _IN_TAIL)
        self._met = _merged(old, self._met, True)
        self._counts[_IN_TAIL] = self._counts.get(_IN_TAIL, 0) + len(hashes)
        self._changed.add(_IN_TAIL)
        if self._counts[_IN_TAIL] > self._sizes.tail:
            self._pour()

    def forget_unmet(self) -> None:
        if not self._met.all():
            self._changed.update(np.unique(self._numbers[~self._met]).tolist())
            self._hashes, self._numbers = self._hashes[self._met], self._numbers[self._met]
            self._count()
            self._join_small()
        self._met = np.zeros(len(self._hashes), np.bool_)

    def changed(self) -> dict[str, bytes]:
        """Return the buckets changed since the last call; the caller deletes empty ones. A bucket
        that receives hashes comes before the one that loses them."""
        numbers, self._changed = self._changed, set()
        names = {TAIL if n == _IN_TAIL else f"{n - 1:06}": n for n in numbers}
        return {
            name: _encoded(self._hashes[self._numbers == names[name]]) for name in sorted(names)
        }

    def _pour(self) -> None:
        """Move the tail into the newest bucket, and new ones when that is full."""
        rest = np.flatnonzero(self._numbers == _IN_TAIL)
        del self._counts[_IN_TAIL]
        number = max(self._counts, default=1)
        while len(rest):
            there = self._counts.get(number, 0)
            taken, rest = np.split(rest, [max(0, self._sizes.bucket - there)])
            if len(taken):
                self._numbers[taken] = number
                self._counts[number] = there + len(taken)
                self._changed.add(number)
            number += 1

    def _join_small(self) -> None:
        """Join adjacent buckets that together fill at most half a bucket."""
        before = None
        for number in sorted(self._counts.keys() - {_IN_TAIL}):
            together = self._counts[number] + self._counts.get(before or number, 0)
            if before is not None and together <= self._sizes.bucket // 2:
                self._numbers[self._numbers == number] = before
                self._counts[before] = together
                del self._counts[number]
                self._changed |= {before, number}
            else:
                before = number

    def _count(self) -> None:
        numbers, counts = np.unique(self._numbers, return_counts=True)
        self._counts = dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def _merged(old: Flags, values: Any, fresh: Any) -> Any:
    merged = np.empty(len(old), values.dtype)
    merged[old], merged[~old] = values, fresh
    return merged


def _number_of(name: str) -> int:
    if name == TAIL:
        return _IN_TAIL
    try:
        return int(name) + 1
    except ValueError as error:
        raise CorruptError(f"{name!r} is not the name of a bucket of seen objects") from error


def _encoded(hashes: Hashes) -> bytes:
    if not len(hashes):
        return b""
    steps = np.diff(hashes, prepend=np.uint64(0)).astype(">u8")
    return zlib.compress(steps.view(np.uint8).reshape(-1, 8).T.tobytes(), 1)


def _decoded(name: str, data: bytes) -> Hashes:
    if not data:
        return np.empty(0, np.uint64)
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, MOST_BYTES)
        if not unpacker.eof:
            raise ValueError("the data is truncated or too large")
        columns = np.frombuffer(text, np.uint8).reshape(8, -1)
    except (zlib.error, ValueError) as error:
        raise CorruptError(f"the bucket {name} of seen objects is damaged: {error}") from error
    steps = np.ascontiguousarray(columns.T).view(">u8").ravel().astype(np.uint64)
    return np.cumsum(steps, dtype=np.uint64)
