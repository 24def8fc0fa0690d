"""What was listed before, so that each object becomes an item once. Pure.

Where the order of new objects can be relied on, a watermark is enough: the last name of a path
(``order: name``), or a time and what is not older (``order: modified``). Else all objects that are
there are remembered as 64-bit hashes, and forgotten when they are there no more (``order: any``).
A hash takes 7 bytes. Exact names were rejected: a million regular ones take next to nothing, random
ones 20 bytes each, and size and time, which tell that an object was written anew, 12 more in both.

A new object whose hash is that of another one would never be read. With n objects remembered this
happens to one new object in 2**64 / n: with ten million, to one in 1.8e12.

What is remembered are buckets, name -> bytes, of which ``changed`` gives those that have to be
written, in this order; whoever does so chooses where. When a write has failed, make a new object of
what is stored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

import numpy as np

from flumeng.connectors.objects.options import Order
from flumeng.connectors.objects.pages import Listed
from flumeng.connectors.objects.seen_hashes import SMALL, Hashes, SeenHashes, Sizes
from flumeng.platform.errors import CorruptError

MARK = "mark-"
"""With it begin the names of the buckets that hold the watermark of a path."""
LEAST_WINDOW_US = 1_000_000
"""Stores have times in whole seconds."""


class Seen(Protocol):
    """``path`` is a path of the source, as its flow says it."""

    def after(self, path: str) -> str:
        """The place behind which a listing of the path may begin."""

    def new(self, path: str, page: Sequence[Listed]) -> list[Listed]:
        """Those that were not added before, in their order."""

    def add(self, path: str, listed: Iterable[Listed]) -> None:
        """They are items now. In ``order: name`` no object before one of them is to be new."""

    def passed(self, paths: Collection[str], now_us: int) -> None:
        """All paths of the source were listed, each to its end, since the last time: what was not
        met is there no more. Never called when the listing of one has failed."""

    def changed(self) -> dict[str, bytes]:
        """The buckets that have changed since the last call; one without bytes is no more."""


def seen(
    order: Order,
    *,
    rewritten: bool,
    window_seconds: float,
    buckets: Mapping[str, bytes],
    sizes: Sizes = SMALL,
) -> Seen:
    """``rewritten``: an object is another one when it was written anew. ``window_seconds``: so much
    older than the newest may an object be that appears, with ``order: modified``."""
    marks = {name: data for name, data in buckets.items() if name.startswith(MARK) and data}
    if order == "name":
        return SeenNames(marks)
    hashes = SeenHashes({name: data for name, data in buckets.items() if name not in marks}, sizes)
    if order == "any":
        return SeenObjects(hashes, rewritten=rewritten)
    return SeenTimes(marks, hashes, rewritten=rewritten, window_seconds=window_seconds)


class SeenNames:
    """The last name of each path. An object that appears before it is never found, nor is one that
    is written anew."""

    def __init__(self, marks: Mapping[str, bytes]) -> None:
        self._marks = _Marks(marks)

    def after(self, path: str) -> str:
        return str(self._marks.get(path, ""))

    def new(self, path: str, page: Sequence[Listed]) -> list[Listed]:
        after = self.after(path)
        return [one for one in page if one.place > after]

    def add(self, path: str, listed: Iterable[Listed]) -> None:
        last = max((one.place for one in listed), default="")
        if last > self.after(path):
            self._marks.set(path, last)

    def passed(self, paths: Collection[str], now_us: int) -> None:
        """Names are not forgotten."""

    def changed(self) -> dict[str, bytes]:
        return self._marks.changed()


class SeenObjects:
    """All objects that are there."""

    def __init__(self, hashes: SeenHashes, *, rewritten: bool) -> None:
        self._hashes = hashes
        self._rewritten = rewritten

    def after(self, path: str) -> str:  # noqa: ARG002
        return ""

    def new(self, path: str, page: Sequence[Listed]) -> list[Listed]:  # noqa: ARG002
        known = self._hashes.meet(self._of(page))
        return [one for one, is_known in zip(page, known, strict=True) if not is_known]

    def add(self, path: str, listed: Iterable[Listed]) -> None:  # noqa: ARG002
        self._hashes.add(self._of(listed))

    def passed(self, paths: Collection[str], now_us: int) -> None:  # noqa: ARG002
        self._hashes.forget_unmet()

    def changed(self) -> dict[str, bytes]:
        return self._hashes.changed()

    def _of(self, listed: Iterable[Listed]) -> Hashes:
        texts = (
            f"{one.place}\0{one.size}\0{one.modified_us}\0{one.tag}"
            if self._rewritten
            else one.place
            for one in listed
        )
        digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in texts)
        return np.frombuffer(digests, ">u8").astype(np.uint64)


class SeenTimes:
    """A time for each path, and the objects that are not older than that.

    The time moves when all paths were listed to their end, so that what is old and comes late by
    name is found; until the first such moment this is as large as with ``order: any``. It stays the
    window behind the newest object that became an item, behind what did not become one, and behind
    the clock, which an object dated in the future is ahead of. S3 dates an object that was uploaded
    in parts to the beginning of its upload: the window has to be longer than uploads take.
    """

    def __init__(
        self,
        marks: Mapping[str, bytes],
        hashes: SeenHashes,
        *,
        rewritten: bool,
        window_seconds: float,
    ) -> None:
        self._marks = _Marks(marks)
        self._objects = SeenObjects(hashes, rewritten=rewritten)
        self._window_us = max(LEAST_WINDOW_US, int(window_seconds * 1_000_000))
        self._newest: dict[str, int] = {}
        """Of the objects of a path that became items."""
        self._refused: dict[str, dict[str, int]] = {}
        """What of a path was new and did not become an item, and when it was written."""

    def after(self, path: str) -> str:  # noqa: ARG002
        return ""

    def new(self, path: str, page: Sequence[Listed]) -> list[Listed]:
        mark = int(self._marks.get(path, 0))
        young = [one for one in page if one.modified_us >= mark]
        new = self._objects.new(path, young)
        self._refused.setdefault(path, {}).update((one.place, one.modified_us) for one in new)
        return new

    def add(self, path: str, listed: Iterable[Listed]) -> None:
        listed = list(listed)
        self._objects.add(path, listed)
        refused = self._refused.get(path, {})
        for one in listed:
            refused.pop(one.place, None)
            self._newest[path] = max(self._newest.get(path, 0), one.modified_us)

    def passed(self, paths: Collection[str], now_us: int) -> None:
        for path in paths:
            oldest = min(self._refused.get(path, {}).values(), default=now_us)
            mark = min(self._newest.get(path, 0), now_us, oldest) - self._window_us
            if mark > int(self._marks.get(path, 0)):
                self._marks.set(path, mark)
        self._refused = {}
        self._objects.passed(paths, now_us)

    def changed(self) -> dict[str, bytes]:
        return self._marks.changed() | self._objects.changed()


class _Marks:
    """A watermark for each path, in a bucket of its own."""

    def __init__(self, buckets: Mapping[str, bytes]) -> None:
        self._marks: dict[str, str | int] = {}
        for name, data in buckets.items():
            try:
                path, mark = json.loads(data)
                self._marks[str(path)] = mark
            except (ValueError, TypeError, RecursionError) as error:
                raise CorruptError(f"the bucket {name} of what was listed is damaged") from error
        self._changed: set[str] = set()

    def get(self, path: str, default: str | int) -> str | int:
        mark = self._marks.get(path, default)
        return mark if isinstance(mark, type(default)) else default

    def set(self, path: str, mark: str | int) -> None:
        self._marks[path] = mark
        self._changed.add(path)

    def changed(self) -> dict[str, bytes]:
        paths, self._changed = self._changed, set()
        return {
            MARK + blake2b(path.encode(), digest_size=8).hexdigest(): json.dumps(
                [path, self._marks[path]]
            ).encode()
            for path in sorted(paths)
        }
