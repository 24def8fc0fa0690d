"""The ZooKeeper adapter, alone in knowing kazoo: typed reads and compare-and-set writes. A write
expects a ``Version``, ``ABSENT`` or ``ANY``, and else raises ConflictError. A watch only triggers
another read. No call blocks past its time limit, and without a connection each raises
UnavailableError at once. The outcome of a write that raised it is unknown."""

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
    """A znode's data version. Never a bare int, since 0 is a version."""

    number: int


class Expect(Enum):
    ABSENT = "absent"
    ANY = "any"


ABSENT = Expect.ABSENT
ANY = Expect.ANY
Expected = Version | Expect


@dataclass(frozen=True)
class Versioned(Generic[R_co]):
    """``session`` owns an ephemeral znode, else 0. ``created``: the creating transaction.
    ``written``: since the epoch by ZooKeeper's clock, only for display and validity of
    certificates."""

    value: R_co
    version: Version
    session: int = 0
    created: int = field(default=0, compare=False)
    written: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Unreadable:
    """An undecodable or forbidden znode. ``newer``: by a newer flumeng; ``hidden``: forbidden.
    Readers of many records set it aside and go on."""

    path: Path
    why: str
    newer: bool = False
    version: Version = field(default_factory=lambda: Version(0))
    session: int = 0
    created: int = field(default=0, compare=False)
    hidden: bool = False

    @property
    def error(self) -> FlumengError:
        if self.hidden:
            return ForbiddenError(str(self))
        return (UserError if self.newer else CorruptError)(str(self))

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


Found = Versioned[R] | Unreadable | None
"""A record, unreadable data, or no znode."""


@dataclass(frozen=True)
class Put:
    """Create (ABSENT) or overwrite (a version or ANY); ``value`` None is a folder."""

    path: Path
    value: Record | None
    expect: Expected


@dataclass(frozen=True)
class Remove:
    """Delete a znode without children."""

    path: Path
    expect: Version | Expect


@dataclass(frozen=True)
class Check:
    """Fail the commit unless the znode has this version."""

    path: Path
    version: Version


Write = Put | Remove | Check
Refused = ConflictError | UserError | ForbiddenError | None
"""Why a transaction was not carried out; None when it was."""


class ReadableStore(Protocol):
    """Read access to a store or an in-memory copy."""

    @property
    def scale(self) -> Scale:
        """Sizes of transactions in this store; see ``transaction``."""

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        """Raises CorruptError, UserError (a newer flumeng's record), UnavailableError."""

    def read_many(self, znodes: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        """As ``read``, for many paths with one wait; one unreadable record fails all."""

    def read_each(self, znodes: Sequence[ZPath[R]]) -> list[Found[R]]:
        """As ``read_many``, with ``Unreadable`` for such records. Raises UnavailableError only."""

    def children(self, path: Path) -> list[str]:
        """Sorted names below ``path`` that the table can have; empty when absent."""

    def children_many(self, folders: Sequence[Path]) -> list[list[str]]:
        """As ``children``, for many paths with one wait."""

    def exists(self, path: Path) -> bool:
        """Whether the znode exists, also with unreadable data."""


class Store(ReadableStore, Protocol):
    """One session. The table of znodes determines which are ephemeral."""

    @property
    def connected(self) -> bool:
        """Whether the session certainly lives: connected, and answered within two thirds of its
        timeout. Owned work begins nothing while it is False."""

    @property
    def session(self) -> int:
        """The session's id; changes after an expiry, 0 before the first connection."""

    def look(
        self, znodes: Sequence[ZPath[R]], folders: Sequence[Path]
    ) -> tuple[list[Found[R]], list[list[str]]]:
        """As ``read_each`` and ``children_many``, with one wait for both."""

    def make_root(self) -> None:
        """Create the chroot and its parents."""

    def write(self, path: Path, value: Record | None, expect: Expected) -> Version:
        """One Put; returns the new version. Raises ConflictError, UnavailableError."""

    def remove(self, path: Path, expect: Expected) -> None:
        """One Remove. Raises ConflictError, UnavailableError."""

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        """One transaction; returns each Put's new version. Raises ConflictError naming the first
        failed path, TooLargeError before sending, UnavailableError."""

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> list[Refused]:
        """Independent transactions in order, with one wait; returns each one's error or None.
        Raises UnavailableError as soon as one is not answered."""

    def watch(self, path: Path, notify: Callable[[str], None]) -> None:
        """Calls ``notify(path)`` after changes at or below ``path``, and with ``path`` itself after
        each reconnect. ``notify`` may only enqueue: it runs on the store's thread."""

    def on_session(self, notify: Callable[[bool], None]) -> None:
        """Calls ``notify(connected)`` when the connection changes; same rule as ``watch``."""

    def dump(self) -> Mapping[str, bytes]:
        """Every readable znode below the chroot: path -> raw data."""

    def close(self) -> None:
        """End the session; ZooKeeper deletes its ephemeral znodes."""


AccessList = tuple[tuple[str, str], ...]
"""``SCHEME:ID`` and its permissions, letters of ``zkschema.access.PERMISSIONS``; sorted."""


@runtime_checkable
class AccessStore(Store, Protocol):
    """A store that gives each znode it creates the access list of its path."""

    def znodes(self) -> list[str]:
        """Every path below the chroot. Raises UnavailableError."""

    def access_lists(self, znodes: Sequence[str]) -> list[AccessList | None]:
        """The list of each, None for absent ones, with few waits."""

    def set_access_lists(self, lists: Mapping[str, AccessList]) -> int:
        """Returns the number of existing znodes. Raises ForbiddenError, UnavailableError."""


def decoded(
    path: ZPath[R],
    data: bytes,
    version: Version,
    session: int = 0,
    created: int = 0,
    *,
    written: float = 0.0,
) -> Versioned[R] | Unreadable:
    assert path.row.record is not None, f"{path} is a folder"
    try:
        value = codec.decode(path.row.record, data)
    except codec.DecodeError as error:
        newer = isinstance(error, codec.NewerVersionError)
        return Unreadable(path, str(error), newer, version, session, created)
    return Versioned(value, version, session, created, written)


def readable(record: Found[R]) -> Versioned[R] | None:
    """Raises CorruptError or UserError for an unreadable record."""
    if isinstance(record, Unreadable):
        raise record.error
    return record


def possible(names: Iterable[str]) -> list[str]:
    """The names that a path of the table can have, sorted."""
    return sorted(name for name in names if NAME.fullmatch(name))


def data_of(path: Path, value: Record | None) -> bytes:
    """The bytes to send. Raises UserError above the size limit of the path's row."""
    if value is None:
        assert path.row.record is None, f"{path} holds a record"
        return b""
    assert path.row.record is type(value), f"{path} does not hold a {type(value).__name__}"
    data = codec.encode(value)
    limit = min(path.row.size_bytes, WIRE_LIMIT_BYTES)
    if len(data) > limit:
        raise UserError(f"{path}: {len(data)} bytes, at most {limit} fit into this znode")
    return data
