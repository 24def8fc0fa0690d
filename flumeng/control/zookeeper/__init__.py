"""The one adapter to ZooKeeper: typed reads, and writes that are all compare-and-set.

A store translates types and errors and decides nothing. Everyone else sees paths and records of
``zkschema`` and never kazoo. A write names what it expects to find (``Version``, ``ABSENT`` or
``ANY``), and loses with ConflictError when that does not hold. A watch only says "look again":
whoever is told reads anew. No call blocks past its time limit, and while there is no connection
every call raises UnavailableError at once; the outcome of a write that raised it is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from flumeng.platform.errors import (
    ConflictError,
    CorruptError,
    FlumengError,
    ForbiddenError,
    UserError,
)
from zkschema import codec
from zkschema.records import Record
from zkschema.table import NAME, ZPath

if TYPE_CHECKING:
    from flumeng.control.zookeeper.transaction import Scale

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
    again. Versions and whatever else is numbered in it begin anew then. ``written``: when, in
    seconds since the epoch by ZooKeeper's clock. That is for people, and decides nothing but which
    certificates held then.
    """

    value: R_co
    version: Version
    session: int = 0
    created: int = field(default=0, compare=False)
    written: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Unreadable:
    """A znode that is there, but whose data this process cannot read as the record of its row.

    ``newer``: a newer flumeng wrote it. ``hidden``: its access list keeps others of the cluster
    from reading it, and nothing else is known of it. Who reads many records sets it aside, says so,
    and goes on.
    """

    path: Path
    why: str
    newer: bool = False
    version: Version = field(default_factory=lambda: Version(0))
    session: int = 0
    created: int = field(default=0, compare=False)
    hidden: bool = False

    @property
    def error(self) -> FlumengError:
        """What a reader of this one record raises."""
        if self.hidden:
            return ForbiddenError(str(self))
        return (UserError if self.newer else CorruptError)(str(self))

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


Found = Versioned[R] | Unreadable | None
"""What is at a path: a record, data that is none, or no znode."""


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
Refused = ConflictError | UserError | ForbiddenError | None
"""Why a transaction was not carried out; None when it was."""


class ReadableStore(Protocol):
    """A cluster that can be looked at: a store, or a copy of what one held."""

    @property
    def scale(self) -> Scale:
        """Sizes of transactions in this store; see ``flumeng.control.zookeeper.transaction``."""

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        """The record at ``path``, or None when there is no such znode.

        Raises CorruptError when the data is not such a record, UserError when a newer flumeng wrote
        it, UnavailableError.
        """

    def read_many(self, wanted: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        """As ``read``, for many paths with one wait: requests are sent together.

        One record that cannot be read fails all: whoever looks at many takes ``read_each``.
        """

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        """As ``read_many``, but a record that cannot be read is given as ``Unreadable``.

        Raises UnavailableError only.
        """

    def children(self, path: Path) -> list[str]:
        """Sorted names below ``path``; empty when there is no such znode.

        A name that no path of the table can have is left out: ``schema verify`` tells of it.
        """

    def children_many(self, wanted: Sequence[Path]) -> list[list[str]]:
        """As ``children``, for many paths with one wait."""

    def exists(self, path: Path) -> bool:
        """Whether there is such a znode, whatever it holds."""


class Store(ReadableStore, Protocol):
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

    def look(
        self, wanted: Sequence[ZPath[R]], folders: Sequence[Path]
    ) -> tuple[list[Found[R]], list[list[str]]]:
        """As ``read_each`` and ``children_many``, with one wait for both."""

    def make_root(self) -> None:
        """Create the chroot, with what is above it, when it is not there."""

    def write(self, path: Path, value: Record | None, expect: Expected) -> Version:
        """One Put; gives the new version. Raises ConflictError, UnavailableError."""

    def remove(self, path: Path, expect: Expected) -> None:
        """One Remove. Raises ConflictError, UnavailableError."""

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        """All writes or none, in one transaction; gives each Put's new version, in order.

        Raises ConflictError that names the first path whose expectation failed, TooLargeError
        before anything is sent that no server takes, UnavailableError.
        """

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> list[Refused]:
        """Many transactions with one wait. They are sent together and carried out in this order;
        one that fails does not keep the next ones from being done.

        Gives for each the ConflictError, the UserError of a value over its bound or of a
        transaction that is too large, or the ForbiddenError that it was refused with, or None.
        Raises UnavailableError as soon as one is not answered.
        """

    def watch(self, path: Path, notify: Callable[[str], None]) -> None:
        """Call ``notify(changed path)`` after changes at or below ``path``.

        After each reconnect it is called with ``path`` itself: anything may have changed.
        ``notify`` runs on the store's thread: it may only enqueue, and never call the store.
        """

    def on_session(self, notify: Callable[[bool], None]) -> None:
        """Call ``notify(connected)`` when the connection comes or goes; same rule as ``watch``."""

    def dump(self) -> Mapping[str, bytes]:
        """Every znode below the chroot: path -> raw data. For verification and export. What others
        may not read is left out."""

    def close(self) -> None:
        """End the session; its ephemeral znodes go."""


AccessList = tuple[tuple[str, str], ...]
"""``SCHEME:ID`` and its permissions, letters of ``zkschema.access.PERMISSIONS``; sorted."""


@runtime_checkable
class AccessStore(Store, Protocol):
    """A store whose znodes have access lists. It gives each that it creates the list that its path
    is to have, as soon as the tree says that the cluster is secured."""

    def znodes(self) -> list[str]:
        """Every path below the chroot, without what is there. Raises UnavailableError."""

    def access_lists(self, znodes: Sequence[str]) -> list[AccessList | None]:
        """What each has, None for what is not there; with few waits for many. Raises
        UnavailableError."""

    def set_access_lists(self, wanted: Mapping[str, AccessList]) -> int:
        """Give each its list, with few waits for many; gives how many were there still. Raises
        ForbiddenError, UnavailableError."""


def decoded(
    path: ZPath[R],
    data: bytes,
    version: Version,
    session: int = 0,
    created: int = 0,
    *,
    written: float = 0.0,
) -> Versioned[R] | Unreadable:
    """The record that a znode's data is, or why it is none."""
    assert path.row.record is not None, f"{path} is a folder"
    try:
        value = codec.decode(path.row.record, data)
    except codec.DecodeError as error:
        newer = isinstance(error, codec.NewerVersionError)
        return Unreadable(path, str(error), newer, version, session, created)
    return Versioned(value, version, session, created, written)


def readable(found: Found[R]) -> Versioned[R] | None:
    """The record, for whom there is no other. Raises CorruptError or UserError when it is none."""
    if isinstance(found, Unreadable):
        raise found.error
    return found


def possible(names: Iterable[str]) -> list[str]:
    """Those that a path of the table can have, sorted."""
    return sorted(name for name in names if NAME.fullmatch(name))


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
