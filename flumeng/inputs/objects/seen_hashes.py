"""A set of 64-bit hashes that is kept in small buckets, of which a change touches few.

Buckets are filled one after the other, by age and not by value: what is added is in the newest
ones, and what is forgotten mostly in the oldest, since objects come and go in this order. The last
few hundred hashes are in the bucket ``tail``, which is all that is written while little happens; a
full tail is poured into the newest bucket. In a bucket are the differences of its sorted hashes,
byte by byte, compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from flumeng.errors import CorruptError

TAIL = "tail"
TAIL_HASHES = 256
BUCKET_HASHES = 4_400
BUCKET_BYTES = 36_000
"""No bucket is larger, whatever the hashes; as Base64 it is below 50 KB."""

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
_NONE: Hashes = np.empty(0, np.uint64)


class SeenHashes:
    """Made of what ``changed`` gave, bucket -> bytes."""

    def __init__(self, buckets: Mapping[str, bytes]) -> None:
        self._tail = _NONE
        self._full: dict[int, Hashes] = {}
        """In the order of their age; only the last one is added to."""
        for name in sorted(buckets):
            hashes = _decoded(name, buckets[name])
            if name == TAIL:
                self._tail = hashes
            else:
                self._full[int(name)] = hashes
        self._all = np.sort(np.concatenate([self._tail, *self._full.values()]))
        """All hashes, sorted, and which of them were looked for since the last ``forget_unmet``."""
        self._met: Flags = np.zeros(len(self._all), np.bool_)
        self._changed: set[str] = set()

    def __len__(self) -> int:
        return len(self._all)

    def meet(self, hashes: Hashes) -> Flags:
        """Which of them are in the set; they are met."""
        if not len(self._all):
            return np.zeros(len(hashes), np.bool_)
        places = np.minimum(np.searchsorted(self._all, hashes), len(self._all) - 1)
        known: Flags = self._all[places] == hashes
        self._met[places[known]] = True
        return known

    def add(self, hashes: Hashes) -> None:
        """Those that are in the set already are met."""
        hashes = np.unique(hashes)
        hashes = hashes[~self.meet(hashes)]
        if not len(hashes):
            return
        places = np.searchsorted(self._all, hashes)
        self._all = np.insert(self._all, places, hashes)
        self._met = np.insert(self._met, places, True)
        self._tail = np.concatenate([self._tail, hashes])
        self._changed.add(TAIL)
        if len(self._tail) > TAIL_HASHES:
            self._pour()

    def forget_unmet(self) -> None:
        """Forget what nobody has looked for since the last time."""
        gone = self._all[~self._met]
        self._all = self._all[self._met]
        self._met = np.zeros(len(self._all), np.bool_)
        if not len(gone):
            return
        if np.isin(self._tail, gone).any():
            self._tail = self._tail[~np.isin(self._tail, gone)]
            self._changed.add(TAIL)
        for number, hashes in list(self._full.items()):
            lost = np.isin(hashes, gone)
            if lost.any():
                self._put(number, hashes[~lost])
        self._join_small()

    def changed(self) -> dict[str, bytes]:
        """The buckets that have changed since the last call; one that is empty is no more."""
        names, self._changed = self._changed, set()
        return {
            name: _encoded(self._tail if name == TAIL else self._full.get(int(name), _NONE))
            for name in sorted(names)
        }

    def _pour(self) -> None:
        """The tail into the newest bucket, and into new ones when that is full."""
        rest, self._tail = self._tail, _NONE
        number = max(self._full, default=0)
        while len(rest):
            there = self._full.get(number, _NONE)
            room = BUCKET_HASHES - len(there)
            if room:
                self._put(number, np.concatenate([there, rest[:room]]))
                rest = rest[room:]
            number += 1

    def _join_small(self) -> None:
        """Neighbours that are a half of a bucket together become one."""
        before = None
        for number in sorted(self._full):
            hashes = self._full[number]
            if before is not None and len(self._full[before]) + len(hashes) <= BUCKET_HASHES // 2:
                self._put(before, np.concatenate([self._full[before], hashes]))
                self._put(number, _NONE)
            else:
                before = number

    def _put(self, number: int, hashes: Hashes) -> None:
        if len(hashes):
            self._full[number] = hashes
        else:
            del self._full[number]
        self._changed.add(f"{number:06}")


def _encoded(hashes: Hashes) -> bytes:
    if not len(hashes):
        return b""
    steps = np.diff(np.sort(hashes), prepend=np.uint64(0)).astype(">u8")
    return zlib.compress(steps.view(np.uint8).reshape(-1, 8).T.tobytes())


def _decoded(name: str, data: bytes) -> Hashes:
    if not data:
        return _NONE
    try:
        columns = np.frombuffer(zlib.decompress(data), np.uint8).reshape(8, -1)
        int(name if name != TAIL else 0)
    except (zlib.error, ValueError) as error:
        raise CorruptError(f"the bucket {name} of what was listed is damaged: {error}") from error
    steps = np.ascontiguousarray(columns.T).view(">u8").ravel().astype(np.uint64)
    return np.cumsum(steps, dtype=np.uint64)
