"""A modelled object store: for each flow a place where objects appear, are rewritten, go, and
cannot be read.

An object of n bytes has n events, one at each position. The assumption of the flow's ``order``
holds: with ``name`` a new object comes behind all others and is never rewritten, with ``modified``
it is younger than they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.objects.cleanup import Cleanup
from flumeng.connectors.objects.listing import Lister, Listing
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.pages import Listed
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item
from flumeng.platform.errors import FlumengError, UnavailableError

ORDERS = ("any", "any", "name", "modified")
MOST_BYTES = 4
MOST_NEW = 6
PAGE = 3
SILENT_SECONDS = 8.0
BEGAN_US = 1_800_000_000_000_000
NAMES = 30

Identity = tuple[str, int, int, str]


def identity(one: Listed | Item) -> Identity:
    """Distinguishes an object from all others, also from an earlier version of itself."""
    modified = one.modified_us
    return one.location, one.size, modified, one.tag


@dataclass(frozen=True)
class Stored:
    """``sound``: the number of readable bytes; the bytes behind them are damaged."""

    listed: Listed
    sound: int


class Bucket:
    """The objects of one flow. ``silent_until``: requests before are not answered. ``ahead_us``:
    how much its clock is ahead of those of all hosts."""

    def __init__(self, flow: str, random: Random, clock: Callable[[], float]) -> None:
        self.flow = flow
        self.order: Final = random.choice(ORDERS)
        self.after: Final = random.choice(("keep", "keep", "delete"))
        self.silent_until = 0.0
        self.objects: dict[str, Stored] = {}
        self._random = random
        self._clock = clock
        self._ahead_us = random.choice((0, 0, 3_000_000, -3_000_000))
        self._written = 0

    def now_us(self) -> int:
        """By the clock of a host."""
        return BEGAN_US + int(self._clock() * 1_000_000)

    def put(self) -> str:
        """Add some objects or rewrite old ones; returns a sentence for the story."""
        names = [self._put_one() for _ in range(self._random.randint(1, MOST_NEW))]
        return f"has {', '.join(names)}"

    def _put_one(self) -> str:
        random = self._random
        self._written += 1
        number = self._written if self.order == "name" else random.randrange(NAMES)
        place = f"/in/{self.flow}/{number:06}"
        size = random.randint(0, MOST_BYTES)
        at = self.now_us() + self._ahead_us
        listed = Listed(place, size, at, random.choice(("", f"tag{self._written}")))
        sound = size if random.random() < 0.8 else random.randint(0, size)
        self.objects[place] = Stored(listed, sound)
        return f"{number} of {size}, {at % 1_000_000_000}" + (
            "" if sound == size else f" bad {sound}"
        )

    def remove(self) -> str:
        """Remove one object."""
        if not self.objects:
            return ""
        place = self._random.choice(sorted(self.objects))
        del self.objects[place]
        return f"loses {place}"

    def heal(self) -> str:
        """Make damaged objects readable."""
        for place, one in self.objects.items():
            self.objects[place] = replace(one, sound=one.listed.size)
        return "heals"

    def fall_silent(self) -> str:
        self.silent_until = self._clock() + self._random.random() * SILENT_SECONDS
        return f"is silent until {self.silent_until:.1f}"

    def answer(self) -> None:
        """Raises UnavailableError while it is silent."""
        if self._clock() < self.silent_until:
            raise UnavailableError(f"the bucket of {self.flow} does not answer")

    def read(self, piece: Range, address: str) -> Iterator[int]:
        """The offset of each event in a range, as ``ObjectsReader`` reads them."""
        for item in items.decode(address):
            first, end = max(piece.start, item.begin), min(piece.end, item.start + item.size)
            stored = self.objects.get(item.location)
            if item.begin >= piece.end or item.end <= piece.start:
                continue
            if item.until is not None:
                end = min(end, item.start + item.until)
                if item.start + item.until <= first:
                    continue
            if self._clock() < self.silent_until:
                raise UnreadableError(piece.partition, first, "no answer", damaged=False)
            if stored is None or identity(stored.listed) != identity(item):
                raise UnreadableError(piece.partition, first, "it is another one")
            sound = item.start + stored.sound
            yield from range(first, min(end, sound))
            if sound < end:
                raise UnreadableError(piece.partition, max(first, sound), "bits")


class BucketLister(Lister):
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def listing(self, after: str = "", *, strict: bool = False) -> Listing:
        del strict
        return BucketListing(self._bucket, after)


class BucketListing(Listing):
    """Each page has the objects at the time of its request."""

    def __init__(self, bucket: Bucket, after: str) -> None:
        self._bucket = bucket
        self._after = after
        self.unnamed, self.unnamed_example = 0, ""

    def __iter__(self) -> Iterator[list[Listed]]:
        bucket = self._bucket
        while True:
            bucket.answer()
            behind = sorted(place for place in bucket.objects if place > self._after)
            if not behind:
                return
            self._after = behind[:PAGE][-1]
            yield [bucket.objects[place].listed for place in behind[:PAGE]]


class BucketCleanup(Cleanup):
    """``on_removed`` is called with each object before it is removed."""

    def __init__(
        self, bucket: Bucket, source: ObjectsSource, on_removed: Callable[[Item], None]
    ) -> None:
        self._bucket = bucket
        self._keeps = source.after == "keep"
        self._on_removed = on_removed

    def clear(self, done: Sequence[Item]) -> str:
        if self._keeps or not done:
            return ""
        try:
            self._bucket.answer()
        except FlumengError as error:
            return f"{done[0].location} was read, but cannot be removed: {error}"
        for item in done:
            stored = self._bucket.objects.get(item.location)
            if stored is not None and identity(stored.listed) == identity(item):
                self._on_removed(item)
                del self._bucket.objects[item.location]
        return ""
