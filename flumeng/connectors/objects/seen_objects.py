"""Memory of listed objects, so that each becomes an item once. Pure.

``order: any`` keeps 64-bit hashes, 7 bytes each, instead of 32 for exact values. With n objects a
new one is mistaken for a known one, and never read, with probability n / 2**64: with ten million, 1
in 1.8e12. After a failed write of ``changed`` buckets, build a new object from the stored ones.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from flumeng.connectors.objects.options import Order
from flumeng.connectors.objects.pages import Listed
from flumeng.connectors.objects.seen_hashes import SMALL, Hashes, SeenHashes, Sizes
from flumeng.platform.errors import CorruptError

MARK = "mark-"
"""Prefix of buckets that hold a path's watermark."""
LEAST_WINDOW_US = 1_000_000
"""Least window of ``order: modified``: stores round times to seconds."""


class Seen(ABC):
    """Memory of seen objects. ``path`` is one of the source's paths."""

    def after(self, path: str) -> str:
        """Return the name after which a listing of the path may begin."""
        del path
        return ""

    @abstractmethod
    def new(self, path: str, page: Sequence[Listed]) -> list[Listed]:
        """Return the objects not added before, in their order."""

    @abstractmethod
    def add(self, path: str, listed: Iterable[Listed]) -> None:
        """Record objects as items. With ``order: name`` no object before them is new later."""

    def passed(self, paths: Collection[str], now_us: int) -> None:  # noqa: B027
        """Forget unlisted objects: since the last call all paths were listed to their ends."""

    @abstractmethod
    def changed(self) -> dict[str, bytes]:
        """Return the buckets changed since the last call; the caller deletes empty ones."""


def seen(
    order: Order,
    *,
    rewritten: bool,
    window_seconds: float,
    buckets: Mapping[str, bytes],
    sizes: Sizes = SMALL,
) -> Seen:
    """Return the memory. ``rewritten``: a rewritten object is a new one. ``window_seconds``: with
    ``order: modified``, a new object may be older than the newest by this."""
    marks = {name: data for name, data in buckets.items() if name.startswith(MARK) and data}
    if order == "name":
        return SeenNames(marks)
    hashes = SeenHashes({name: data for name, data in buckets.items() if name not in marks}, sizes)
    if order == "any":
        return SeenObjects(hashes, rewritten=rewritten)
    return SeenTimes(marks, hashes, rewritten=rewritten, window_seconds=window_seconds)


class SeenNames(Seen):
    """Memory of the last name of each path. Finds no new objects before it, nor rewritten ones."""

    def __init__(self, marks: Mapping[str, bytes]) -> None:
        self._marks = _Marks(marks)

    def after(self, path: str) -> str:
        return str(self._marks.get(path, ""))

    def new(self, path: str, page: Sequence[Listed]) -> list[Listed]:
        after = self.after(path)
        return [listed for listed in page if listed.name > after]

    def add(self, path: str, listed: Iterable[Listed]) -> None:
        last = max((each.name for each in listed), default="")
        if last > self.after(path):
            self._marks.set(path, last)

    def changed(self) -> dict[str, bytes]:
        return self._marks.changed()


class SeenObjects(Seen):
    def __init__(self, hashes: SeenHashes, *, rewritten: bool) -> None:
        self._hashes = hashes
        self._rewritten = rewritten

    def new(self, path: str, page: Sequence[Listed]) -> list[Listed]:  # noqa: ARG002
        met = self._hashes.meet(self._of(page))
        return [listed for listed, is_known in zip(page, met, strict=True) if not is_known]

    def add(self, path: str, listed: Iterable[Listed]) -> None:  # noqa: ARG002
        self._hashes.add(self._of(listed))

    def passed(self, paths: Collection[str], now_us: int) -> None:  # noqa: ARG002
        self._hashes.forget_unmet()

    def changed(self) -> dict[str, bytes]:
        return self._hashes.changed()

    def _of(self, listed: Iterable[Listed]) -> Hashes:
        texts = (
            f"{obj.name}\0{obj.size}\0{obj.modified_us}\0{obj.tag}" if self._rewritten else obj.name
            for obj in listed
        )
        digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in texts)
        return np.frombuffer(digests, ">u8").astype(np.uint64)


class SeenTimes(Seen):
    """A watermark (time) for each path, and the objects that are not older. The mark moves after a
    complete listing; until then all objects are remembered. It stays one window behind the newest
    appended object, the oldest object not appended, and the clock."""

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
        """Modification time of the newest item, by path."""
        self._refused: dict[str, dict[str, int]] = {}
        """By path: names and modification times of new objects that did not become items."""

    def new(self, path: str, page: Sequence[Listed]) -> list[Listed]:
        mark = int(self._marks.get(path, 0))
        young = [listed for listed in page if listed.modified_us >= mark]
        new = self._objects.new(path, young)
        self._refused.setdefault(path, {}).update((each.name, each.modified_us) for each in new)
        return new

    def add(self, path: str, listed: Iterable[Listed]) -> None:
        listed = list(listed)
        self._objects.add(path, listed)
        refused = self._refused.get(path, {})
        for new in listed:
            refused.pop(new.name, None)
            self._newest[path] = max(self._newest.get(path, 0), new.modified_us)

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
    def __init__(self, buckets: Mapping[str, bytes]) -> None:
        self._marks: dict[str, str | int] = {}
        for name, data in buckets.items():
            try:
                path, mark = json.loads(data)
                self._marks[str(path)] = mark
            except (ValueError, TypeError, RecursionError) as error:
                raise CorruptError(f"the bucket {name} of seen objects is damaged") from error
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


@dataclass
class _Waiting:
    listed: Listed
    since: float
    listing: int


class Settling:
    """Decides whether an object is unchanged for long enough to be read: old enough by the store's
    and this host's clocks, or seen unchanged for that long, if the store's clock is ahead."""

    def __init__(self, settle_seconds: float) -> None:
        self._seconds = settle_seconds
        self._waiting: dict[str, _Waiting] = {}
        """Unsettled objects by name; the next ``passed`` removes settled ones."""
        self._listings = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def is_settled(self, listed: Listed, now_us: int, monotonic: float) -> bool:
        """Return whether the object is settled. Called once for each new object of a listing.
        ``monotonic``: seconds."""
        old = now_us - listed.modified_us >= self._seconds * 1_000_000
        waiting = self._waiting.get(listed.name)
        if not self._seconds or (old and waiting is None):
            return True
        if waiting is None or waiting.listed != listed:
            self._waiting[listed.name] = _Waiting(listed, monotonic, self._listings)
            return False
        waiting.listing = self._listings
        return old or monotonic - waiting.since >= self._seconds

    def settled(
        self, page: Iterable[Listed], now_us: int, monotonic: float, *, in_order: bool = False
    ) -> list[Listed]:
        """Return the settled objects; with ``in_order`` only those before an unsettled one."""
        settled = []
        held = False
        for listed in page:
            if not self.is_settled(listed, now_us, monotonic):
                held = in_order
            elif not held:
                settled.append(listed)
        return settled

    def passed(self) -> None:
        """End a listing: forget objects that it did not contain."""
        self._waiting = {
            name: waiting
            for name, waiting in self._waiting.items()
            if waiting.listing == self._listings
        }
        self._listings += 1
