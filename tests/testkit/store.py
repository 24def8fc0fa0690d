"""Fakes that ship, and a real ZooKeeper to start and kill: for tests of any user of a store.

``FakeStore`` keeps the same contract as the real one (one contract suite runs on both). Several
sessions share one ``FakeTree``; ``cut``, ``heal`` and ``expire`` act on one session as a network
does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path as FilePath
from typing import Any, TypeVar

from flumeng.agent.standalone import embedded
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    AccessList,
    Check,
    Expected,
    Found,
    Path,
    Put,
    Refused,
    Remove,
    Version,
    Versioned,
    Write,
    access_lists,
    data_of,
    decoded,
    possible,
    readable,
)
from flumeng.control.zookeeper.transaction import OPEN, Scale
from flumeng.platform.errors import (
    ConflictError,
    FlumengError,
    ForbiddenError,
    UnavailableError,
    UserError,
)
from flumeng.platform.security.roles import DIRECTORY
from tests.testkit.waiting import wait_for
from tests.testkit.zookeeper import ask_server
from zkschema import codec, paths
from zkschema.access import Secured
from zkschema.records import Record, Schema
from zkschema.table import Row, ZPath

R = TypeVar("R", bound=Record)


@dataclass
class _Znode:
    data: bytes
    version: int = 0
    session: int = 0
    created: int = 0
    written: float = 0.0
    access: AccessList = OPEN
    read: tuple[tuple[bytes, int, Row[Any]], Found[Any]] | None = field(default=None, repr=False)
    """The decoded record, for the next reader: records are immutable."""


class Znodes(MutableMapping[str, _Znode]):
    """Znodes by path. It indexes children, so that listing need not scan all znodes."""

    def __init__(self) -> None:
        self._all: dict[str, _Znode] = {}
        self._below: dict[str, dict[str, None]] = {}
        self["/"] = _Znode(b"")

    def of_session(self, session: int) -> list[str]:
        """Return the paths of its ephemeral znodes; other threads may write meanwhile."""
        return [path for path, znode in [*self._all.items()] if znode.session == session]

    def below(self, path: str) -> list[str]:
        return list(self._below.get(path, ()))

    def __getitem__(self, path: str) -> _Znode:
        return self._all[path]

    def __setitem__(self, path: str, znode: _Znode) -> None:
        self._all[path] = znode
        parent, _, name = path.rpartition("/")
        if name:
            self._below.setdefault(parent or "/", {})[name] = None

    def __delitem__(self, path: str) -> None:
        del self._all[path]
        parent, _, name = path.rpartition("/")
        self._below.get(parent or "/", {}).pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


@dataclass
class FakeTree:
    """The servers' data: shared by all sessions of one test, also across threads."""

    znodes: Znodes = field(default_factory=Znodes)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stores: list[FakeStore] = field(default_factory=list)
    sessions: count[int] = field(default_factory=lambda: count(1))
    creations: count[int] = field(default_factory=lambda: count(1))
    clock: Callable[[], float] = lambda: 0.0
    secured: tuple[bytes, Secured | None] | None = None
    """The bytes of the schema record, and the access lists that it requires."""

    def put(self, path: str, data: bytes) -> None:
        """Put a znode there as it is, without a transaction; no watch fires."""
        self.znodes[path] = _Znode(data, created=next(self.creations))

    def changed(self, path: str) -> None:
        for store in self.stores:
            store.hear(path)


class FakeStore:
    """See ``flumeng.control.zookeeper.Store``; watches fire in the thread that writes."""

    def __init__(self, tree: FakeTree | None = None) -> None:
        self.tree = tree or FakeTree()
        self.tree.stores.append(self)
        self.session = next(self.tree.sessions)
        self.connected = True
        self._watches: list[tuple[str, Callable[[str], None]]] = []
        self._listeners: list[Callable[[bool], None]] = []

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        return self.read_many([path])[0]

    def read_many(self, wanted: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        return [readable(found) for found in self.read_each(wanted)]

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        self._require_connection()
        return [self._found(path) for path in wanted]

    def _found(self, path: ZPath[R]) -> Found[R]:
        znode = self.tree.znodes.get(str(path))
        if znode is None:
            return None
        now = (znode.data, znode.version, path.row)
        if znode.read is None or znode.read[0] != now:
            version = Version(znode.version)
            own = znode.session, znode.created
            found = decoded(path, znode.data, version, *own, written=znode.written)
            znode.read = now, found
        return znode.read[1]

    def children(self, path: Path) -> list[str]:
        self._require_connection()
        return possible(self.tree.znodes.below(str(path).rstrip("/") or "/"))

    def children_many(self, wanted: Sequence[Path]) -> list[list[str]]:
        return [self.children(path) for path in wanted]

    def look(
        self, wanted: Sequence[ZPath[R]], folders: Sequence[Path]
    ) -> tuple[list[Found[R]], list[list[str]]]:
        return self.read_each(wanted), self.children_many(folders)

    def exists(self, path: Path) -> bool:
        self._require_connection()
        return str(path) in self.tree.znodes

    def make_root(self) -> None:
        self._require_connection()

    def write(self, path: Path, value: Record | None, expect: Expected) -> Version:
        if expect is ANY and not self.exists(path):
            expect = ABSENT
        return self.commit([Put(path, value, expect)])[0]

    def remove(self, path: Path, expect: Expected) -> None:
        self.commit([Remove(path, expect)])

    @property
    def scale(self) -> Scale:
        """The weight of transactions on a real server with the default ``jute.maxbuffer``."""
        return Scale(secured=self._secured())

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        self._require_connection()
        with self.tree.lock:
            data = [data_of(one.path, one.value) if isinstance(one, Put) else b"" for one in writes]
            self.scale.require(writes, data)
            touched = {str(write.path): self.tree.znodes.get(str(write.path)) for write in writes}
            before = {path: replace(znode) for path, znode in touched.items() if znode}
            try:
                versions = [self._apply(*one) for one in zip(writes, data, strict=True)]
            except FlumengError:
                for path in touched:
                    self.tree.znodes.pop(path, None)
                self.tree.znodes.update(before)
                raise
        for write in writes:
            if not isinstance(write, Check):
                self.tree.changed(str(write.path))
        return [version for version in versions if version is not None]

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> list[Refused]:
        return [self._outcome(writes) for writes in transactions]

    def _outcome(self, writes: Sequence[Write]) -> Refused:
        try:
            self.commit(writes)
        except (ConflictError, ForbiddenError, UserError) as error:
            return error
        return None

    def watch(self, path: Path, notify: Callable[[str], None]) -> None:
        self._watches.append((str(path), notify))

    def on_session(self, notify: Callable[[bool], None]) -> None:
        self._listeners.append(notify)

    def dump(self) -> Mapping[str, bytes]:
        self._require_connection()
        return {path: znode.data for path, znode in self.tree.znodes.items() if path != "/"}

    def znodes(self) -> list[str]:
        self._require_connection()
        return [path for path in self.tree.znodes if path != "/"]

    def access_lists(self, znodes: Sequence[str]) -> list[AccessList | None]:
        self._require_connection()
        found = [self.tree.znodes.get(path) for path in znodes]
        return [znode.access if znode else None for znode in found]

    def set_access_lists(self, wanted: Mapping[str, AccessList]) -> int:
        """Access lists are recorded here, but not enforced."""
        self._require_connection()
        there = wanted.keys() & self.tree.znodes.keys()
        for path in there:
            self.tree.znodes[path].access = wanted[path]
        return len(there)

    def _access(self, path: str) -> AccessList:
        secured = self._secured()
        return access_lists.expected(path, secured) if secured else OPEN

    def _secured(self) -> Secured | None:
        znode = self.tree.znodes.get(str(paths.schema()))
        if znode is None:
            return None
        if self.tree.secured is None or self.tree.secured[0] != znode.data:
            with contextlib.suppress(codec.DecodeError):
                self.tree.secured = znode.data, Secured.of(codec.decode(Schema, znode.data))
        return self.tree.secured[1] if self.tree.secured else None

    def close(self) -> None:
        if self in self.tree.stores:
            self.expire()
            self.tree.stores.remove(self)
            self.connected = False

    def hear(self, path: str) -> None:
        for watched, notify in self._watches:
            if self.connected and (path == watched or path.startswith(watched.rstrip("/") + "/")):
                notify(path)

    def cut(self) -> None:
        """Cut the connection; the session lives on."""
        self.connected = False
        for listener in self._listeners:
            listener(False)

    def heal(self) -> None:
        """Reconnect; watchers are notified to read again."""
        self.connected = True
        for path, notify in self._watches:
            notify(path)
        for listener in self._listeners:
            listener(True)

    def expire(self) -> None:
        """End the session: its ephemeral znodes are removed, and a new session begins."""
        gone = self.tree.znodes.of_session(self.session)
        self.session = next(self.tree.sessions)
        for path in gone:
            del self.tree.znodes[path]
            self.tree.changed(path)

    def _require_connection(self) -> None:
        if not self.connected:
            raise UnavailableError("no connection to ZooKeeper now; reconnecting")

    def _apply(self, write: Write, data: bytes) -> Version | None:
        path = str(write.path)
        znode = self.tree.znodes.get(path)
        if isinstance(write, Put) and write.expect is ABSENT:
            if znode is not None:
                raise ConflictError(f"znode {path} exists already")
            if (path.rpartition("/")[0] or "/") not in self.tree.znodes:
                raise ConflictError(f"znode {path} does not exist (or its parent does not)")
            session = self.session if write.path.row.lifetime == "ephemeral" else 0
            born = next(self.tree.creations), self.tree.clock()
            self.tree.znodes[path] = _Znode(data, 0, session, *born, self._access(path))
            return Version(0)
        if znode is None:
            raise ConflictError(f"znode {path} does not exist (or its parent does not)")
        expected = write.version if isinstance(write, Check) else write.expect
        if isinstance(expected, Version) and expected.number != znode.version:
            raise ConflictError(f"znode {path} was changed by someone else")
        if isinstance(write, Put):
            znode.data = data
            znode.version += 1
            znode.written = self.tree.clock()
            return Version(znode.version)
        if isinstance(write, Remove):
            if self.tree.znodes.below(path):
                raise ConflictError(f"znode {path} still has children")
            del self.tree.znodes[path]
        return None


class RealZooKeeper:
    """The embedded server in a process of its own, on one port for its whole life.

    With an ``identity`` that port is secure; ``plain`` gives it a plain one too."""

    def __init__(
        self, data: FilePath, identity: FilePath | None = None, *, plain: bool = False
    ) -> None:
        self.data, self.identity = data, identity
        self.port = embedded.free_port()
        self.plain_port = embedded.free_port() if plain else None
        self.address = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait_seconds: float = 60.0) -> None:
        """Start, and return when the server answers."""
        self.launch()
        self.wait_answering(wait_seconds)

    def launch(self) -> None:
        """Start, and do not wait: several come up at the same time. It ends with the thread that
        launched it."""
        self.data.mkdir(parents=True, exist_ok=True)
        with (self.data / "server.log").open("ab") as log:
            command = [
                sys.executable,
                "-m",
                "flumeng.agent.standalone.embedded",
                str(self.data),
                str(self.port),
                *([str(self.plain_port)] if self.plain_port else []),
            ]
            told = {DIRECTORY: str(self.identity)} if self.identity else {}
            surroundings = os.environ | told
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=surroundings)

    def wait_answering(self, wait_seconds: float = 60.0) -> None:
        wait_for(self._answers, "ZooKeeper does not answer", seconds=wait_seconds)

    def kill(self) -> None:
        """SIGKILL; the state on disk stays."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        """Whether it serves requests. It reports itself healthy a little earlier, and clients that
        connect then get no answer."""
        assert self.process is not None
        assert self.process.poll() is None, (self.data / "server.log").read_text()
        try:
            return "Mode:" in ask_server(self.port, b"srvr", self.identity)
        except OSError:
            return False
