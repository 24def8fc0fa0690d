"""One session of the modelled ZooKeeper, with the contract of a store.

Rules
1. A session reads from one server, which has applied some prefix of the log. The prefix only grows:
   also over a reconnect, and it holds all that was there when a write of the session was answered.
2. Writes are linearised. One whose reply is lost was done, was not done, or is still under way;
   it then arrives before anything that the session does next, or not at all.
3. A session that the servers have ended learns of it at its next call or reconnect. It is another
   session from then on, and a connection counts only once it is made.
4. Watches report as late as the server is, in order, and before a call shows the change (the store
   gets events on the thread that reads replies). Changes while there was no connection are not
   reported one by one: after a reconnect the watcher only learns that it has to look again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Protocol, TypeVar

from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Expected,
    Found,
    Path,
    Put,
    Refused,
    Remove,
    Version,
    Versioned,
    Write,
    data_of,
    readable,
)
from flumeng.control.zookeeper.transaction import Scale
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.simulation.ensemble import Changes, Ensemble
from zkschema import codec
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


class Fate(Enum):
    """The outcome of a write: all but the first raise UnavailableError."""

    ANSWERED = "answered"
    UNANSWERED = "done, but the reply is lost"
    LATE = "under way"
    LOST = "not done"


class Network(Protocol):
    """The network between a session and the servers."""

    @property
    def prompt(self) -> bool:
        """Whether servers have applied each transaction at once."""

    def before_call(self, *, writes: bool) -> None:
        """Called before each request: time passes, and others act."""

    def applied(self, seen: int, newest: int, /) -> int:
        """The transaction up to which the answering server is, from ``seen`` to ``newest``."""

    def fate(self) -> Fate:
        """The outcome of the next write."""

    def cuts(self) -> bool:
        """Whether the connection is lost together with a reply."""

    def arrives(self) -> bool:
        """Whether a write under way is carried out after the connection is lost."""


class Calm:
    """Nothing is late and nothing is lost."""

    prompt = True

    def before_call(self, *, writes: bool) -> None:
        pass

    def applied(self, _seen: int, newest: int) -> int:
        return newest

    def fate(self) -> Fate:
        return Fate.ANSWERED

    def cuts(self) -> bool:
        return False

    def arrives(self) -> bool:
        return True


class Session:
    """See ``flumeng.control.zookeeper.Store``. ``zxid`` is how far the session has seen the log."""

    def __init__(
        self, ensemble: Ensemble, network: Network | None = None, name: str = "someone"
    ) -> None:
        self.ensemble = ensemble
        self.name = name
        self.network = network or Calm()
        self.session = ensemble.open_session(name)
        self.zxid = ensemble.zxid
        self.connected = True
        self._under_way: list[Sequence[Write]] = []
        self._watches: list[tuple[str, str, Callable[[str], None]]] = []
        self._listeners: list[Callable[[bool], None]] = []
        ensemble.listeners.append(self._hear)

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        self._reach()
        return readable(self._read(path))

    def read_many(self, wanted: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        return [readable(found) for found in self.read_each(wanted)]

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        """One server answers, and applies more of the log between the reads."""
        self._reach()
        found = []
        for path in wanted:
            self._catch_up()
            found.append(self._read(path))
        return found

    def children(self, path: Path) -> list[str]:
        self._reach()
        return self.ensemble.children(str(path), self.zxid)

    def children_many(self, wanted: Sequence[Path]) -> list[list[str]]:
        return [self.children(path) for path in wanted]

    def look(
        self, wanted: Sequence[ZPath[R]], folders: Sequence[Path]
    ) -> tuple[list[Found[R]], list[list[str]]]:
        return self.read_each(wanted), self.children_many(folders)

    def exists(self, path: Path) -> bool:
        self._reach()
        return self.ensemble.read(str(path), self.zxid) is not None

    def make_root(self) -> None:
        self._reach()

    def write(self, path: Path, value: Record | None, expect: Expected) -> Version:
        if expect is ANY and not self.exists(path):
            expect = ABSENT
        return self.commit([Put(path, value, expect)])[0]

    def remove(self, path: Path, expect: Expected) -> None:
        self.commit([Remove(path, expect)])

    @property
    def scale(self) -> Scale:
        return self.ensemble.scale

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        data = [data_of(one.path, one.value) if isinstance(one, Put) else b"" for one in writes]
        self.scale.require(writes, data)
        self._reach(writes=True)
        fate = self.network.fate()
        if fate is Fate.ANSWERED:
            try:
                return self.ensemble.commit(self.session, writes)
            finally:
                self.see(self.ensemble.zxid)
        self._under_way.append(writes)
        if fate is Fate.UNANSWERED:
            self.arrive()
        elif fate is Fate.LOST:
            self._under_way.clear()
        if fate is Fate.LOST or self.network.cuts():
            self.cut()
        raise UnavailableError("no reply to a write")

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> list[Refused]:
        """All are sent at once: when one has no reply, those after it may be done as well."""
        outcomes: list[Refused] = []
        for number, writes in enumerate(transactions, start=1):
            try:
                self.commit(writes)
            except (ConflictError, UserError) as error:
                outcomes.append(error)
            except UnavailableError:
                if self.connected or self._under_way:
                    self._under_way += transactions[number:]
                raise
            else:
                outcomes.append(None)
        return outcomes

    def watch(self, path: Path, notify: Callable[[str], None]) -> None:
        self._watches.append((str(path), str(path).rstrip("/") + "/", notify))

    def on_session(self, notify: Callable[[bool], None]) -> None:
        self._listeners.append(notify)

    def dump(self) -> Mapping[str, bytes]:
        self._reach()
        return {
            path: codec.encode(znode.value) if znode.value else b""
            for path, znode in self.ensemble.dump(self.zxid)
        }

    def close(self) -> None:
        self.vanish()
        self.expire()

    def vanish(self) -> None:
        """The process is gone; the session lives on until the servers end it."""
        self.connected = False
        if self._hear in self.ensemble.listeners:
            self.ensemble.listeners.remove(self._hear)

    def cut(self) -> None:
        """The connection is lost; the session lives on."""
        if self.connected:
            self.connected = False
            for listener in self._listeners:
                listener(False)

    def expire(self) -> None:
        """The servers end the session; the client does not know yet."""
        self._under_way.clear()
        self.ensemble.close_session(self.session)

    def heal(self) -> None:
        """Reconnect, perhaps to another server, with a new session if needed."""
        if not self.ensemble.is_open(self.session):
            self.session = self.ensemble.open_session(self.name)
            self.zxid = self.ensemble.zxid
        if not self.network.arrives():
            self._under_way.clear()
        self.arrive()
        self.connected = True
        for path, _, notify in self._watches:
            notify(path)
        for listener in self._listeners:
            listener(True)

    def arrive(self) -> None:
        """Writes under way are applied now. Their authors get no reply."""
        writes, self._under_way = self._under_way, []
        for write in writes:
            try:
                self.ensemble.commit(self.session, write)
            except ConflictError:
                continue

    def see(self, zxid: int) -> None:
        """The server has applied the log up to ``zxid``, and its watches have fired."""
        if not self.connected or zxid <= self.zxid:
            return
        before, self.zxid = self.zxid, zxid
        if self._watches:
            for path in self.ensemble.changed(before, zxid):
                for watched, below, notify in self._watches:
                    if path == watched or path.startswith(below):
                        notify(path)

    def _reach(self, *, writes: bool = False) -> None:
        """A request gets to a server, after all requests before it."""
        self._require_connection()
        self.network.before_call(writes=writes)
        self._require_connection()
        if self._under_way:
            self.arrive()
            self.see(self.ensemble.zxid)
        self._catch_up()

    def _require_connection(self) -> None:
        if self.connected and not self.ensemble.is_open(self.session):
            self.cut()
        if not self.connected:
            raise UnavailableError("no connection to ZooKeeper now; reconnecting")

    def _catch_up(self) -> None:
        newest = self.ensemble.zxid
        if self.zxid < newest:
            self.see(self.network.applied(self.zxid, newest))

    def _read(self, path: ZPath[R]) -> Found[R]:
        assert path.row.record is not None, f"{path} is a folder"
        znode = self.ensemble.read(str(path), self.zxid)
        if znode is None:
            return None
        assert isinstance(znode.value, path.row.record)
        return Versioned(znode.value, Version(znode.version), znode.session, znode.created)

    def _hear(self, _session: int, _changes: Changes) -> None:
        if self.network.prompt:
            self.see(self.ensemble.zxid)
