"""The data of ZooKeeper's servers: one log of transactions, and every znode as it was after each.

Writes are linearised: each is one transaction at the end of the log, all or nothing. A server may
lag: a reader names the transaction (zxid) after which it reads. Nothing here is lost, delayed or
random; that is the business of the session and its network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from flumeng.control.zookeeper import ABSENT, Check, Put, Remove, Version, Write
from flumeng.control.zookeeper.transaction import Scale
from flumeng.platform.errors import ConflictError
from zkschema.records import Record


@dataclass(frozen=True, slots=True)
class Znode:
    """One state of a znode. ``session`` owns it when it is ephemeral; ``created`` and ``changed``
    are the zxids of its first and of this state."""

    value: Record | None
    version: int
    session: int
    created: int
    changed: int


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a znode in one transaction; ``before`` is None for a created znode, ``after``
    for a removed one."""

    path: str
    before: Znode | None
    after: Znode | None


Changes = Sequence[Change]
Hear = Callable[[int, Changes], None]
_History = list[tuple[int, Znode | None]]


class Ensemble:
    """``zxid`` is that of the newest transaction; ``scale`` decides which are too large.

    Each of ``listeners`` is called with the session and the changes of every transaction, in order.
    """

    def __init__(self) -> None:
        self.zxid = 0
        self.scale = Scale()
        self.listeners: list[Hear] = []
        self._histories: dict[str, _History] = {"/": [(0, Znode(None, 0, 0, 0, 0))]}
        self._below: dict[str, dict[str, _History]] = {"/": {}}
        self._sessions: dict[int, set[str]] = {}
        self._names: dict[int, str] = {}
        self._ids = count(1)
        self._log: list[tuple[str, ...]] = [()]

    def open_session(self, name: str) -> int:
        """A new session for this name; its number is never reused."""
        session = next(self._ids)
        self._names[session] = name
        self._sessions[session] = set()
        return session

    def name_of(self, session: int) -> str:
        return self._names[session]

    def is_open(self, session: int) -> bool:
        return session in self._sessions

    def close_session(self, session: int) -> None:
        """The session ends, and its ephemeral znodes go."""
        paths = sorted(self._sessions.pop(session, ()))
        self._append(session, dict.fromkeys(paths))

    def read(self, path: str, zxid: int) -> Znode | None:
        """The znode as it was after that transaction."""
        history = self._histories.get(path)
        return _at(history, zxid) if history else None

    def newest(self, path: str) -> Znode | None:
        history = self._histories.get(path)
        return history[-1][1] if history else None

    def children(self, path: str, zxid: int) -> list[str]:
        """Sorted names; none when there is no such znode."""
        below = self._below.get(path, {})
        return sorted(name for name, history in below.items() if _at(history, zxid))

    def dump(self, zxid: int) -> Iterator[tuple[str, Znode]]:
        for path, history in self._histories.items():
            if path != "/" and (znode := _at(history, zxid)):
                yield path, znode

    def changed(self, after: int, until: int) -> Iterator[str]:
        """The paths that the transactions after one and until another changed, in order."""
        for paths in self._log[after + 1 : until + 1]:
            yield from paths

    def commit(self, session: int, writes: Sequence[Write]) -> list[Version]:
        """One transaction; gives the version of each Put. Raises ConflictError."""
        assert session in self._sessions, f"session {session} has ended"
        staged: dict[str, Znode | None] = {}
        versions = []
        for write in writes:
            znode = self._stage(session, write, staged)
            if isinstance(write, Put):
                assert znode is not None
                versions.append(Version(znode.version))
        self._append(session, staged)
        return versions

    def expectation_holds(self, write: Write, znode: Znode) -> bool:
        """Whether a write to a znode that is there finds the version that it expects."""
        expected = write.version if isinstance(write, Check) else write.expect
        return not isinstance(expected, Version) or expected.number == znode.version

    def _stage(self, session: int, write: Write, staged: dict[str, Znode | None]) -> Znode | None:
        path = str(write.path)
        znode = staged[path] if path in staged else self.newest(path)
        if isinstance(write, Put) and write.expect is ABSENT:
            if znode is not None:
                raise ConflictError(f"znode {path} exists already")
            if not self._exists(_parent(path), staged):
                raise ConflictError(f"znode {path} does not exist (or its parent does not)")
            owner = session if write.path.row.lifetime == "ephemeral" else 0
            zxid = self.zxid + 1
            staged[path] = Znode(write.value, 0, owner, zxid, zxid)
            return staged[path]
        if znode is None:
            raise ConflictError(f"znode {path} does not exist (or its parent does not)")
        if not self.expectation_holds(write, znode):
            raise ConflictError(f"znode {path} was changed by someone else")
        if isinstance(write, Put):
            staged[path] = Znode(
                write.value, znode.version + 1, znode.session, znode.created, self.zxid + 1
            )
            return staged[path]
        if isinstance(write, Remove):
            if any(self._exists(f"{path}/{name}", staged) for name in self._below.get(path, ())):
                raise ConflictError(f"znode {path} still has children")
            staged[path] = None
        return None

    def _exists(self, path: str, staged: Mapping[str, Znode | None]) -> bool:
        return (staged[path] if path in staged else self.newest(path)) is not None

    def _append(self, session: int, staged: Mapping[str, Znode | None]) -> None:
        if not staged:
            return
        self.zxid += 1
        changes = []
        for path, znode in staged.items():
            before = self.newest(path)
            self._own(path, before, znode)
            history = self._histories.setdefault(path, [])
            history.append((self.zxid, znode))
            parent, _, name = path.rpartition("/")
            self._below.setdefault(parent or "/", {})[name] = history
            if before is not None or znode is not None:
                changes.append(Change(path, before, znode))
        self._log.append(tuple(change.path for change in changes))
        for listener in tuple(self.listeners):
            listener(session, changes)

    def _own(self, path: str, before: Znode | None, after: Znode | None) -> None:
        if before is not None and before.session in self._sessions:
            self._sessions[before.session].discard(path)
        if after is not None and after.session:
            self._sessions[after.session].add(path)


def _at(history: _History, zxid: int) -> Znode | None:
    for changed, znode in reversed(history):
        if changed <= zxid:
            return znode
    return None


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
