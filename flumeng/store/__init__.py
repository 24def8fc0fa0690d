"""The one door to ZooKeeper: typed reads, and writes that are all compare-and-set.

A store translates types and errors and decides nothing. Everyone else sees paths and records of
``zkschema`` and never kazoo. A write names what it expects to find (``Version``, ``ABSENT`` or
``ANY``), and loses with ConflictError when that does not hold. A watch only says "look again":
whoever is told reads anew. No call blocks past its time limit, and while there is no connection
every call raises UnavailableError at once; the outcome of a write that raised it is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from flumeng.errors import UserError
from zkschema import codec
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)
R_co = TypeVar("R_co", bound=Record, covariant=True)

Path = ZPath[Any]
WIRE_LIMIT_BYTES = 512 * 1024


@dataclass(frozen=True)
class Version:
    """The number of a znode's data version. Never a bare int, since 0 is a version."""

    number: int


class Expect(Enum):
    """What a write expects when it is not one version."""

    ABSENT = "absent"
    ANY = "any"


ABSENT = Expect.ABSENT
ANY = Expect.ANY
Expected = Version | Expect


@dataclass(frozen=True)
class Versioned(Generic[R_co]):
    """A record as read. ``session`` is the session that owns an ephemeral znode, else 0.

    ``created``: the transaction that made the znode, another one after it was removed and made
    again. Versions and whatever else is numbered in it begin anew then.
    """

    value: R_co
    version: Version
    session: int = 0
    created: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Put:
    """Create (ABSENT) or overwrite (a version, or ANY that exists); ``value`` None is a folder."""

    path: Path
    value: Record | None
    expect: Expected


@dataclass(frozen=True)
class Remove:
    """Delete a znode without children at a version, or at ANY."""

    path: Path
    expect: Version | Expect


@dataclass(frozen=True)
class Check:
    """Let the commit fail unless the znode has this version."""

    path: Path
    version: Version


Write = Put | Remove | Check


class Store(Protocol):
    """One session. Ephemeral znodes are those whose row in the table says so."""

    @property
    def connected(self) -> bool:
        """Whether the session certainly lives: there is a connection, and ZooKeeper has answered
        something that was asked within the last two thirds of the session's timeout.

        Owned work begins nothing while this is False, and no call has a chance.
        """

    @property
    def session(self) -> int:
        """Id of the session; another number after an expiry, 0 before the first connection."""

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        """The record at ``path``, or None when there is no such znode.

        Raises CorruptError when the data is not such a record, UnavailableError.
        """

    def read_many(self, wanted: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        """As ``read``, for many paths with one wait: requests are sent together."""

    def children(self, path: Path) -> list[str]:
        """Sorted names below ``path``; empty when there is no such znode."""

    def exists(self, path: Path) -> bool:
        """Whether there is such a znode, whatever it holds."""

    def make_root(self) -> None:
        """Create the chroot, with what is above it, when it is not there."""

    def write(self, path: Path, value: Record | None, expect: Expected) -> Version:
        """One Put; gives the new version. Raises ConflictError, UnavailableError."""

    def remove(self, path: Path, expect: Expected) -> None:
        """One Remove. Raises ConflictError, UnavailableError."""

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        """All writes or none, in one transaction; gives each Put's new version, in order.

        Raises ConflictError that names the first path whose expectation failed, UnavailableError.
        """

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> None:
        """Many transactions with one wait. They are sent together and carried out in this order;
        one that fails does not keep the next ones from being done.

        Raises the first ConflictError when all are answered, UnavailableError as soon as one is
        not.
        """

    def watch(self, path: Path, notify: Callable[[str], None]) -> None:
        """Call ``notify(changed path)`` after changes at or below ``path``.

        After each reconnect it is called with ``path`` itself: anything may have changed.
        ``notify`` runs on the store's thread: it may only enqueue, and never call the store.
        """

    def on_session(self, notify: Callable[[bool], None]) -> None:
        """Call ``notify(connected)`` when the connection comes or goes; same rule as ``watch``."""

    def dump(self) -> Mapping[str, bytes]:
        """Every znode below the chroot: path -> raw data. For verification and export."""

    def close(self) -> None:
        """End the session; its ephemeral znodes go."""


def data_of(path: Path, value: Record | None) -> bytes:
    """The bytes to send; UserError when they are over the bound of the path's row."""
    if value is None:
        assert path.row.record is None, f"{path} holds a record"
        return b""
    assert path.row.record is type(value), f"{path} does not hold a {type(value).__name__}"
    data = codec.encode(value)
    limit = min(path.row.size_bytes, WIRE_LIMIT_BYTES)
    if len(data) > limit:
        raise UserError(f"{path}: {len(data)} bytes, at most {limit} fit into this znode")
    return data
