"""The ZooKeeper adapter, the only part that knows kazoo: typed reads and compare-and-set writes. A
write expects a ``Version``, ``ABSENT`` or ``ANY``, and raises ConflictError otherwise. A watch only
triggers another read. No call blocks past its time limit. Without a connection reads and writes
raise UnavailableError at once. A write that raised it (not ForbiddenError) may be committed."""

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
    """A znode's data version; not an int, since 0 is a valid version."""

    number: int


class Expect(Enum):
    ABSENT = "absent"
    ANY = "any"


ABSENT = Expect.ABSENT
ANY = Expect.ANY
Expected = Version | Expect


@dataclass(frozen=True)
class Versioned(Generic[R_co]):
    """A record with its znode's metadata. ``session``: the owner of an ephemeral znode, else 0.
    ``created``: the creating transaction. ``written``: its last change by ZooKeeper's clock, in
    seconds since the epoch, only for display and the validity of certificates."""

    value: R_co
    version: Version
    session: int = 0
    created: int = field(default=0, compare=False)
    written: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Unreadable:
    """An undecodable or forbidden znode. ``newer``: written by a newer flumeng; ``hidden``:
    forbidden. Readers of many records skip it and continue."""

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
"""A record, an unreadable record, or None when there is no znode."""


@dataclass(frozen=True)
class Put:
    """Create a znode (ABSENT) or overwrite one (a version or ANY); ``value`` None is a folder."""

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
    """Refuse the transaction unless the znode has this version."""

    path: Path
    version: Version


Write = Put | Remove | Check
Refused = ConflictError | UserError | ForbiddenError | None
"""Why a transaction was refused; None when it was committed."""


class ReadableStore(Protocol):
    """Read access to a store or an in-memory copy."""

    @property
    def scale(self) -> Scale:
        """How large transactions are in this store; see ``transaction``."""

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        """Read a record, None if absent. Raises ``Unreadable.error`` or UnavailableError."""

    def read_many(self, znodes: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        """Read many records as ``read`` does, pipelined; one unreadable record fails all."""

    def read_each(self, znodes: Sequence[ZPath[R]]) -> list[Found[R]]:
        """Read many records; unreadable ones are ``Unreadable``. Raises UnavailableError only."""

    def children(self, path: Path) -> list[str]:
        """Return the sorted valid names below ``path``; empty when the znode is absent."""

    def children_many(self, folders: Sequence[Path]) -> list[list[str]]:
        """List many folders as ``children`` does, pipelined."""

    def exists(self, path: Path) -> bool:
        """Return whether the znode exists, even with unreadable data."""


class Store(ReadableStore, Protocol):
    """One ZooKeeper session at a time. The table of znodes determines which are ephemeral."""

    @property
    def connected(self) -> bool:
        """Whether the session is certainly alive: connected, and answered within two thirds of its
        timeout. Work that needs the session must not begin while this is False."""

    @property
    def session(self) -> int:
        """The session's id; changes after an expiry, 0 before the first connection."""

    def look(
        self, znodes: Sequence[ZPath[R]], folders: Sequence[Path]
    ) -> tuple[list[Found[R]], list[list[str]]]:
        """Read records as ``read_each`` and list folders as ``children_many``, pipelined."""

    def make_root(self) -> None:
        """Create the chroot and its parents."""

    def write(self, path: Path, value: Record | None, expect: Expected) -> Version:
        """Commit one Put (ANY may also create); return the new version. Raises as ``commit``."""

    def remove(self, path: Path, expect: Expected) -> None:
        """Commit one Remove. Raises as ``commit``."""

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        """Commit one transaction; return each Put's new version. Raises ConflictError or
        ForbiddenError with the first failed path, UserError if too large, UnavailableError."""

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> list[Refused]:
        """Commit independent transactions in order, pipelined; return each one's error or None.
        Raises UnavailableError as soon as one has no answer; later ones may be committed."""

    def watch(self, path: Path, notify: Callable[[str], None]) -> None:
        """Call ``notify`` with each changed path at or below ``path``, and with ``path`` after each
        connect. ``notify`` must only enqueue: it runs on a thread of the store."""

    def on_session(self, notify: Callable[[bool], None]) -> None:
        """Call ``notify(connected)`` after each change of the connection; it must only enqueue."""

    def dump(self) -> Mapping[str, bytes]:
        """Return the raw data of every readable znode below the chroot by path."""

    def close(self) -> None:
        """End the session; ZooKeeper deletes its ephemeral znodes."""


AccessList = tuple[tuple[str, str], ...]
"""Sorted pairs of ``SCHEME:ID`` and permissions (letters of ``zkschema.access.PERMISSIONS``)."""


@runtime_checkable
class AccessStore(Store, Protocol):
    """A store that gives each znode that it creates the access list of its path."""

    def znodes(self) -> list[str]:
        """Return every path below the chroot. Raises UnavailableError."""

    def access_lists(self, znodes: Sequence[str]) -> list[AccessList | None]:
        """Return the access lists of these znodes, None for absent ones, pipelined."""

    def set_access_lists(self, lists: Mapping[str, AccessList]) -> int:
        """Set the lists; return how many znodes exist. Raises ForbiddenError, UnavailableError."""


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
    """Return the record, None if absent. Raises ``Unreadable.error``."""
    if isinstance(record, Unreadable):
        raise record.error
    return record


def possible(names: Iterable[str]) -> list[str]:
    """Return the valid znode names among ``names``, sorted."""
    return sorted(name for name in names if NAME.fullmatch(name))


def data_of(path: Path, value: Record | None) -> bytes:
    """Return the bytes to send. Raises UserError above the size limit of this kind of znode."""
    if value is None:
        assert path.row.record is None, f"{path} holds a record"
        return b""
    assert path.row.record is type(value), f"{path} does not hold a {type(value).__name__}"
    data = codec.encode(value)
    limit = min(path.row.size_bytes, WIRE_LIMIT_BYTES)
    if len(data) > limit:
        raise UserError(f"znode {path}: {len(data)} bytes are too many, at most {limit} fit")
    return data
