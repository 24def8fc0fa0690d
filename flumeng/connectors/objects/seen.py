"""Remembers listed objects, so that each becomes an item once. Pure.

With ``order: name`` or ``modified`` a watermark suffices: the last name of a path, or a time. With
``order: any`` all existing objects are remembered as 64-bit hashes, 7 bytes each; exact names would
take 20 bytes, and sizes and times 12 more. With n objects, one new object in 2**64 / n is taken for
a known one and never read: with ten million, one in 1.8e12.

The memory is in buckets, name -> bytes; ``changed`` gives those to write, in this order. After a
failed write, make a new object of what is stored.
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
"""The prefix of buckets that hold the watermark of a path."""
LEAST_WINDOW_US = 1_000_000
"""Stores have times in whole seconds."""


class Seen(Protocol):
    """``path`` is one of the source's paths."""

    def after(self, path: str) -> str:
        """The place after which a listing of the path may begin."""

    def new(self, path: str, page: Sequence[Listed]) -> list[Listed]:
        """Those that were not added before, in their order."""

    def add(self, path: str, listed: Iterable[Listed]) -> None:
        """They are items now. With ``order: name`` no object before one of them is new later."""

    def passed(self, paths: Collection[str], now_us: int) -> None:
        """All paths were listed to their ends since the last call; what was not met is gone."""

    def changed(self) -> dict[str, bytes]:
        """The buckets changed since the last call; an empty one is to be deleted."""


def seen(
    order: Order,
    *,
    rewritten: bool,
    window_seconds: float,
    buckets: Mapping[str, bytes],
    sizes: Sizes = SMALL,
) -> Seen:
    """``rewritten``: a rewritten object is a new one. ``window_seconds``: how much older than the
    newest a new object may be with ``order: modified``."""
    marks = {name: data for name, data in buckets.items() if name.startswith(MARK) and data}
    if order == "name":
        return SeenNames(marks)
    hashes = SeenHashes({name: data for name, data in buckets.items() if name not in marks}, sizes)
    if order == "any":
        return SeenObjects(hashes, rewritten=rewritten)
    return SeenTimes(marks, hashes, rewritten=rewritten, window_seconds=window_seconds)


class SeenNames:
    """The last name of each path. New objects before it, and rewritten ones, are never found."""

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
    """A time for each path, and the objects that are not older.

    The time moves when all paths were listed to their ends; until the first such moment all objects
    are remembered. It stays a window behind the newest object that became an item, the oldest that
    did not, and the clock. S3 dates a multipart upload to its beginning: the window has to be
    longer than uploads take.
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
        """When the newest item of a path was written."""
        self._refused: dict[str, dict[str, int]] = {}
        """New objects of a path that did not become items, and when they were written."""

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
