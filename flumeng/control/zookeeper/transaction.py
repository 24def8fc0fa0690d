"""Computes transaction sizes as ZooKeeper's server does, which closes the connection on a request
over ``jute.maxbuffer``. So writers split their writes, and a store refuses larger ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from flumeng.control.zookeeper import ABSENT, AccessList, Path, Put, Write, access_lists, data_of
from flumeng.platform.errors import UserError
from zkschema import codec
from zkschema.access import Secured

T = TypeVar("T")

LIMIT_BYTES = 0xFFFFF
"""The default ``jute.maxbuffer`` of a server."""
MOST_WRITES = 1000
"""The most writes of several items in a portion: a server runs one transaction at a time."""
REQUEST_BYTES = 8 + 9
"""The request's header, and the mark at its end."""
WRITE_BYTES = 9 + 4 + 4
"""A write's header, the length of its path, and its version or flags."""
LENGTH_BYTES = 4
ENTRY_BYTES = 4 + 4 + 4
"""Permissions and two lengths of an access list's entry."""
OPEN: AccessList = (("world:anyone", "rwcda"),)


class TooLargeError(UserError):
    """A transaction over the limit; it was not sent."""


@dataclass(frozen=True)
class Scale:
    """Sizes of transactions. ``chroot_bytes`` precede each path; ``secured`` sets access lists."""

    chroot_bytes: int = 0
    secured: Secured | None = None
    limit_bytes: int = LIMIT_BYTES

    def weigh(self, write: Write) -> int:
        """Return the bytes of one write; a value above its znode's limit never fits."""
        value = write.value if isinstance(write, Put) else None
        data = b"" if value is None else codec.encode(value)
        size = self.weigh_encoded(write, data)
        return size if len(data) <= write.path.row.size_bytes else size + self.limit_bytes

    def weigh_encoded(self, write: Write, data: bytes) -> int:
        """Return the bytes of a write whose encoded value is ``data``, of any size."""
        size = WRITE_BYTES + self.chroot_bytes + len(str(write.path).encode())
        if not isinstance(write, Put):
            return size
        size += LENGTH_BYTES + len(data)
        return size + self._list_bytes(write.path) if write.expect is ABSENT else size

    def most(self, path: Path) -> int:
        """Return the largest size of creating the znode, in bytes."""
        size = WRITE_BYTES + self.chroot_bytes + len(str(path).encode())
        return size + LENGTH_BYTES + path.row.size_bytes + self._list_bytes(path)

    def total(self, writes: Iterable[Write]) -> int:
        return REQUEST_BYTES + sum(map(self.weigh, writes))

    def fits(self, writes: Iterable[Write], room_bytes: int = 0) -> bool:
        """Return whether the writes fit into one transaction, with ``room_bytes`` to spare."""
        return self.total(writes) + room_bytes <= self.limit_bytes

    def require(self, writes: Sequence[Write], data: Sequence[bytes]) -> None:
        """Raises TooLargeError when the writes, with the values ``data``, exceed the limit."""
        size = REQUEST_BYTES + sum(map(self.weigh_encoded, writes, data))
        if size > self.limit_bytes:
            raise TooLargeError(self.why_too_large(_named(writes), size))

    def why_too_large(self, subject: str, size_bytes: int) -> str:
        return (
            f"{subject} takes {size_bytes} bytes in one transaction, and ZooKeeper takes at most "
            f"{self.limit_bytes} (jute.maxbuffer): nothing was written; change less at once"
        )

    def _list_bytes(self, path: Path) -> int:
        if self.secured is None:
            return _bytes_of(OPEN)
        return _bytes_of(access_lists.expected(str(path), self.secured))


def portions(
    scale: Scale,
    items: Iterable[T],
    writes_of: Callable[[T], Sequence[Write]],
    *,
    each: Sequence[Write] = (),
    room_bytes: int = 0,
    most: int | None = None,
) -> Iterator[list[T]]:
    """Split items in order into portions that fit a transaction with ``each`` (writes) and
    ``room_bytes``; an item's writes stay together. ``most`` replaces ``MOST_WRITES``. Raises
    TooLargeError or UserError for an item too large alone, after the portions before it."""
    empty = REQUEST_BYTES + room_bytes + sum(map(scale.weigh, each))
    most = MOST_WRITES if most is None else most
    portion: list[T] = []
    size, count = empty, 0
    for item in items:
        writes = writes_of(item)
        needed = sum(map(scale.weigh, writes))
        if portion and (size + needed > scale.limit_bytes or count + len(writes) > most):
            yield portion
            portion, size, count = [], empty, 0
        if size + needed > scale.limit_bytes:
            for write in writes:
                if isinstance(write, Put):
                    data_of(write.path, write.value)  # names the value over its bound
            raise TooLargeError(scale.why_too_large(_named(writes), size + needed))
        portion.append(item)
        size, count = size + needed, count + len(writes)
    if portion:
        yield portion


def singly(
    scale: Scale, writes: Iterable[Write], *, each: Sequence[Write] = (), room_bytes: int = 0
) -> Iterator[list[Write]]:
    """Split independent writes into portions as ``portions`` does."""
    return portions(scale, writes, lambda write: [write], each=each, room_bytes=room_bytes)


def first_that_fit(items: Sequence[T], fits: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return the longest fitting prefix of ``items``, at least one item, by binary search."""
    least, most = 1, len(items)
    if most <= 1 or fits(items):
        return items
    while least < most - 1:
        middle = (least + most) // 2
        if fits(items[:middle]):
            least = middle
        else:
            most = middle
    return items[:least]


def _named(writes: Sequence[Write]) -> str:
    more = len(writes) - 1
    return f"{writes[0].path} and {more} more writes" if more else str(writes[0].path)


@lru_cache(maxsize=4096)
def _bytes_of(entries: AccessList) -> int:
    identities = (identity.partition(":") for identity, _ in entries)
    return LENGTH_BYTES + sum(
        ENTRY_BYTES + len(scheme.encode()) + len(name.encode()) for scheme, _, name in identities
    )
