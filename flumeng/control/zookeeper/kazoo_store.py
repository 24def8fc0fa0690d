"""The store on a real ZooKeeper, with workarounds for kazoo's traps, as *kazoo: this store*.

- Watches are dropped at a disconnect: they are added again, and all watchers notified.
- No recursive watches or multi-reads: see ``kazoo_requests``. Servers before 3.6 are refused.
- The back-off between reconnects grows to an hour: here to one second.
- Commands are retried even after a session's expiry: here never.
- Calls queue while disconnected, ``get()`` has no limit: here they fail at once, waits are limited.
- An unexpected exception ends the connection for good: here it is a dropped connection.
- A session has no clock: see ``lease``. ``commit`` returns exceptions as values: here it raises.
- A client does not survive ``fork``: a call in another process is an error.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import Create
from kazoo.protocol.states import KazooState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE

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
    Store,
    Unreadable,
    Version,
    Versioned,
    Write,
    access_lists,
    data_of,
    decoded,
    kazoo_hooks,
    kazoo_requests,
    lease,
    lost_history,
    possible,
    readable,
    tls,
)
from flumeng.control.zookeeper.traffic import Traffic
from flumeng.control.zookeeper.transaction import Scale
from flumeng.platform.errors import ConflictError, ForbiddenError, UnavailableError, UserError
from flumeng.platform.metrics.table import Reading
from flumeng.platform.security import process
from flumeng.platform.security.credentials import keystore_of
from flumeng.platform.security.roles import DIRECTORY, PEOPLE, Role
from zkschema import codec, paths
from zkschema.access import NAMED, Secured
from zkschema.records import Member, Record, Schema
from zkschema.table import ZPath

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)

CONFLICTS = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
CALL_SECONDS = 5.0
RETRY_SECONDS = 0.1
READS_AT_ONCE = 1000
READS_TOGETHER = 100
FOLDERS_AT_ONCE = 10
WRITES_AT_ONCE = 100
PROBED = 3
FORBIDDEN_SECONDS = 1.0


def connect(
    hosts: str,
    *,
    session_seconds: float = 10.0,
    wait_seconds: float = 8.0,
    credential: str = "",
    roles: Sequence[Role] = PEOPLE,
) -> Store:
    """Connect to ``hosts``, like ``host:port[,host:port]/chroot``, within ``wait_seconds``. Uses
    the first of ``roles`` for which this host has a certificate. ``credential``: ``user:password``
    of ZooKeeper's digest scheme. Raises UnavailableError, ForbiddenError for a certificate without
    rights, and UserError for invalid ``hosts``, an old server or a permanent TLS failure."""
    store = ZooKeeperStore(hosts, session_seconds, credential=credential, roles=roles)
    if store.wait_connected(wait_seconds):
        return store
    store.close()
    if store.too_old:
        raise UserError(f"ZooKeeper at {hosts} is older than 3.6: flumeng needs 3.6 or newer")
    if store.trouble:
        raise (ForbiddenError if store.expelled else UserError)(store.trouble)
    raise UnavailableError(
        f"ZooKeeper at {hosts} did not answer within {wait_seconds:.0f} s: "
        "is it running, and are host and port right?"
    )


class ZooKeeperStore:
    """The store. ``_shown``: group secrets sent on every connection. ``expelled``: the last member
    list lacked this process; it gets no notice of changes, so it rereads the list before it writes.
    ``_unreadable``: why access lists were not read last; without older ones nothing is created.
    ``too_old``: a server was refused. ``_connection``: counts states of the connection."""

    def __init__(
        self,
        hosts: str,
        session_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        credential: str = "",
        roles: Sequence[Role] = PEOPLE,
    ) -> None:
        servers, slash, chroot = hosts.partition("/")
        if not servers or (slash and not chroot):
            raise UserError(f"ZooKeeper address {hosts!r} is not host:port[,host:port]/chroot")
        self._pid = os.getpid()
        self._watches: list[tuple[str, Callable[[str], None]]] = []
        self._listeners: list[Callable[[bool], None]] = []
        self._ready = threading.Event()
        self._greeted = threading.Event()
        self.too_old = False
        self._secured: Secured | None = None
        self._unreadable = ""
        self.expelled = False
        self._shown: set[tuple[str, str]] = set()
        self._changing = threading.Lock()
        self._connection = 0
        self._lease = lease.Lease(clock)
        self._traffic = Traffic()
        keystore, self._member = keystore_of(*roles), process.member(*roles)
        self._handler = handler = tls.Handler(keystore)
        never = KazooRetry(max_tries=0, sleep_func=handler.sleep_func)
        always = KazooRetry(max_tries=-1, delay=0.1, max_delay=1.0, sleep_func=handler.sleep_func)
        try:
            self._client = KazooClient(
                hosts,
                timeout=session_seconds,
                handler=handler,
                connection_retry=always,
                command_retry=never,
                auth_data=[("digest", credential)] if credential else None,
            )
        except ValueError as error:
            raise UserError(f"invalid ZooKeeper address {hosts!r}: {error}") from error
        kazoo_hooks.require(self._client)
        kazoo_requests.hear_events(self._client, self._on_event)
        kazoo_requests.match_auth_answers(self._client)
        kazoo_requests.reconnect_after_errors(self._client)
        lease.observe(self._client, self._lease)
        lost_history.observe(self._client)
        self._client.add_listener(self._on_state)
        self._tls = keystore is not None
        if self._tls:
            self._watches.append((str(paths.schema()), self._on_schema))
        self._client.start_async()

    def wait_connected(self, seconds: float) -> bool:
        self._greeted.wait(seconds)
        return self._ready.is_set()

    @property
    def trouble(self) -> str:
        """Why there is no connection, with the remedy; empty when there is one."""
        if self._ready.is_set():
            return ""
        if self._client.connected and not self._lease.granted_seconds:
            return kazoo_hooks.why_not_taken()
        return self._handler.trouble or self._plain_trouble()

    def _plain_trouble(self) -> str:
        servers = [(host, int(port)) for host, port in self._client.hosts][:PROBED]
        secure = next((s for s in servers if not self._tls and tls.speaks_tls(*s)), None)
        if secure is None:
            return ""
        return (
            f"ZooKeeper at {secure[0]}:{secure[1]} accepts only TLS: set {DIRECTORY} to the "
            "directory of this host's certificates"
        )

    @property
    def connected(self) -> bool:
        return self._ready.is_set() and self._lease.left_seconds > 0

    @property
    def session(self) -> int:
        identity = self._client.client_id
        return int(identity[0] or 0) if identity else 0

    @property
    def scale(self) -> Scale:
        return Scale(len(self._client.chroot.encode()), self._secured)

    def readings(self) -> Iterator[Reading]:
        """Yield the metrics of the connection. Thread-safe."""
        return self._traffic.readings(lambda: self.connected)

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        return self.read_many([path])[0]

    def read_many(self, znodes: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        return [readable(record) for record in self.read_each(znodes)]

    def read_each(self, znodes: Sequence[ZPath[R]]) -> list[Found[R]]:
        return self.look(znodes, [])[0]

    def children(self, path: Path) -> list[str]:
        return self.children_many([path])[0]

    def children_many(self, folders: Sequence[Path]) -> list[list[str]]:
        return self.look([], folders)[1]

    def look(
        self, znodes: Sequence[ZPath[R]], folders: Sequence[Path]
    ) -> tuple[list[Found[R]], list[list[str]]]:
        self._require_connection()
        self._traffic.read(len(znodes))
        answers = self._read_together([*znodes, *folders], len(znodes))
        records = [
            _decode(path, answer)
            for path, answer in zip(znodes, islice(answers, len(znodes)), strict=True)
        ]
        hidden = [record for record in records if isinstance(record, Unreadable) and record.hidden]
        if hidden and not self._belongs():
            raise hidden[0].error
        return records, [possible(names or []) for names in answers]

    def _read_together(self, znodes: Sequence[Path], data: int) -> Iterator[Any]:
        """Yield answers in order: the data of the first ``data`` znodes, then children of the
        others. None for an absent znode, a NoAuthError for forbidden data."""
        names = [str(path) for path in znodes]
        calls = (
            kazoo_requests.read_async(
                self._client,
                names[n : min(n + READS_TOGETHER, data)],
                names[max(n, data) : n + READS_TOGETHER],
            )
            for n in range(0, len(names), READS_TOGETHER)
        )
        asked = iter(enumerate(names))
        for call in _in_flight(calls, READS_AT_ONCE // READS_TOGETHER):
            for answer, (number, name) in zip(_wait(call), asked, strict=False):
                expected = NoNodeError if number >= data else (NoNodeError, NoAuthError)
                if isinstance(answer, KazooException) and not isinstance(answer, expected):
                    raise _unavailable(answer, name) from answer
                yield None if isinstance(answer, NoNodeError) else answer

    def exists(self, path: Path) -> bool:
        self._require_connection()
        return _wait(self._client.exists_async(str(path))) is not None

    def make_root(self) -> None:
        self._require_connection()
        if _wait(self._client.exists_async("/")) is None:
            self._make(self._client.chroot)

    def _make(self, path: str) -> None:
        """Create an absolute path and its parents: kazoo's own calls stay below the chroot."""
        made = self._client.handler.async_result()
        self._client._call(Create(path, b"", OPEN_ACL_UNSAFE, 0), made)
        try:
            _wait(made)
        except NodeExistsError:
            return
        except NoNodeError:
            self._make(path.rpartition("/")[0])
            self._make(path)

    def write(self, path: Path, value: Record | None, expect: Expected) -> Version:
        if expect is ANY and not self.exists(path):
            expect = ABSENT
        return self.commit([Put(path, value, expect)])[0]

    def remove(self, path: Path, expect: Expected) -> None:
        self.commit([Remove(path, expect)])

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        self._require_connection()
        with self._traffic.transaction():
            return _versions(writes, _wait(self._send(writes)), self._refusal)

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> list[Refused]:
        self._require_connection()
        calls = map(self._try_to_send, transactions)
        outcomes: list[Refused] = []
        for writes, call in zip(transactions, _in_flight(calls, WRITES_AT_ONCE), strict=True):
            if isinstance(call, UserError):
                outcomes.append(call)
                continue
            result, sent_at = call
            try:
                with self._traffic.transaction(sent_at):
                    _versions(writes, _wait(result), self._refusal)
            except (ConflictError, ForbiddenError) as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def _try_to_send(self, writes: Sequence[Write]) -> Any:
        try:
            return self._send(writes), time.perf_counter()
        except UserError as error:
            return error

    def _send(self, writes: Sequence[Write]) -> Any:
        if self.expelled:
            self._learn_access()
        data = [data_of(w.path, w.value) if isinstance(w, Put) else b"" for w in writes]
        self.scale.require(writes, data)
        transaction = self._client.transaction()
        for write, value in zip(writes, data, strict=True):
            _add(transaction, write, value, self._acl)
        return transaction.commit_async()

    def watch(self, path: Path, notify: Callable[[str], None]) -> None:
        with self._changing:
            self._watches.append((str(path), notify))
            connection = self._connection
            if not self._ready.is_set():
                return
        try:
            self._add_watch(str(path))
        except UnavailableError:
            self._client.handler.spawn(self._restore, connection)

    def on_session(self, notify: Callable[[bool], None]) -> None:
        self._listeners.append(notify)

    def dump(self) -> Mapping[str, bytes]:
        tree: dict[str, bytes] = {}
        waiting = ["/"]
        while waiting:
            self._require_connection()
            calls = [
                (path, self._client.get_async(path), self._client.get_children_async(path))
                for path in waiting[:READS_AT_ONCE]
            ]
            waiting = waiting[READS_AT_ONCE:]
            for path, data, children in calls:
                try:
                    tree[path] = _wait(data)[0]
                    names = _wait(children)
                except NoNodeError:
                    continue
                except ForbiddenError:
                    if not self._belongs():
                        raise
                    continue
                waiting += [f"{path.rstrip('/')}/{name}" for name in names]
        tree.pop("/", None)
        return tree

    def znodes(self) -> list[str]:
        paths_below: list[str] = []
        folders = ["/"]
        while folders:
            self._require_connection()
            calls = (
                kazoo_requests.read_async(self._client, [], folders[n : n + READS_TOGETHER])
                for n in range(0, len(folders), READS_TOGETHER)
            )
            answers = (
                answer for call in _in_flight(calls, FOLDERS_AT_ONCE) for answer in _wait(call)
            )
            below: list[str] = []
            for folder, names in zip(folders, answers, strict=True):
                if isinstance(names, NoNodeError):
                    continue
                if isinstance(names, KazooException):
                    raise _unavailable(names) from names
                below += [f"{folder.rstrip('/')}/{name}" for name in names]
            paths_below += below
            folders = below
        return paths_below

    def access_lists(self, znodes: Sequence[str]) -> list[AccessList | None]:
        self._require_connection()
        calls = _in_flight(map(self._client.get_acls_async, znodes), READS_AT_ONCE)
        return [answer and access_lists.of_kazoo(answer[0]) for answer in map(_if_there, calls)]

    def set_access_lists(self, lists: Mapping[str, AccessList]) -> int:
        self._require_connection()
        calls = (
            self._client.set_acls_async(path, access_lists.to_kazoo(access_list))
            for path, access_list in lists.items()
        )
        return sum(done is not None for done in map(_if_there, _in_flight(calls, READS_AT_ONCE)))

    def _acl(self, path: Path) -> list[Any] | None:
        if self._secured is None:
            if self._unreadable:
                why = f"cannot create {path}: its access list is unknown while {self._unreadable}"
                raise UnavailableError(why)
            return None
        return access_lists.to_kazoo(access_lists.expected(str(path), self._secured))

    @property
    def _refusal(self) -> str:
        return access_lists.refusal(self._member, self._secured)

    def _learn_access(self) -> bool:
        """Join this member's groups, read the access lists of new znodes; False: call again."""
        if not self._tls:
            return True
        named = self._member.partition(":")[0] in NAMED
        znode: Path = paths.member(self._member)
        try:
            admitted = self._join_groups() if named else True
            znode = paths.schema()
            answer = _if_there(self._client.get_async(str(paths.schema())))
            schema = codec.decode(Schema, answer[0]) if answer else None
        except ForbiddenError:
            remedy = (
                "admits it with `flumeng schema secure --member ROLE:NAME`"
                if named
                else "gives a new role its rights with `flumeng schema verify --fix`"
            )
            self._handler.failed(
                f"this certificate has no rights in the cluster: an administrator {remedy}"
            )
            self.expelled = True
            self._greeted.set()
            time.sleep(FORBIDDEN_SECONDS)
            return False
        except codec.DecodeError as error:
            self._unreadable = f"{znode} cannot be read: {error}"
            then = "get the access lists read before" if self._secured else "are not created"
            log.error("%s: new znodes %s until it can be read", self._unreadable, then)
            return True
        except UnavailableError as error:
            log.debug("access rights could not be read, retrying: %s", error)
            return False
        if self._unreadable:
            log.info("the access lists can be read again")
        self._secured, self._unreadable = Secured.of(schema), ""
        self.expelled = named and self._secured is not None and not admitted
        return True

    def _join_groups(self) -> bool:
        """Send the secrets of this member's groups; return whether it is admitted."""
        answer = _if_there(self._client.get_async(str(paths.member(self._member))))
        if answer is None:
            return False
        groups = codec.decode(Member, answer[0]).secrets
        for group, secrets in groups.items():
            for secret in secrets:
                shown = (access_lists.DIGEST, access_lists.credential(group, secret))
                if shown not in self._shown:
                    _wait(self._client.add_auth_async(*shown))
                    self._shown.add(shown)
        return bool(groups)

    def _belongs(self) -> bool:
        """Whether this process has rights in the cluster: every member may read the schema."""
        try:
            return _if_there(self._client.get_async(str(paths.schema()))) is not None
        except ForbiddenError:
            return False

    def _on_schema(self, _path: str) -> None:
        self._client.handler.spawn(self._learn_access)

    def close(self) -> None:
        closing = threading.Thread(target=self._close, name="closing", daemon=True)
        closing.start()
        closing.join(CALL_SECONDS)

    def _close(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except (KazooException, OSError) as error:
            log.debug("closing the session: %s", error)

    def _require_connection(self) -> None:
        assert os.getpid() == self._pid, "a store cannot be used after fork: connect again"
        if not self._ready.is_set():
            raise UnavailableError("no connection to ZooKeeper now; reconnecting")
        if self._lease.left_seconds <= 0:
            raise UnavailableError("ZooKeeper does not answer: the session may be over")

    def _on_state(self, state: str) -> None:
        """Handle a change of the connection, on kazoo's thread: must not wait for ZooKeeper."""
        with self._changing:
            self._connection += 1
            self._ready.clear()
            self._greeted.clear()
        if state == KazooState.CONNECTED and not self._lease.granted_seconds:
            log.critical("%s", kazoo_hooks.why_not_taken())
            return
        if state == KazooState.CONNECTED:
            self._client.handler.spawn(self._restore, self._connection)
            return
        for listener in self._listeners:
            listener(False)

    def _restore(self, connection: int) -> None:
        """Add all watches, retrying while the connection lasts; notify watchers and listeners."""
        while self._connection == connection:
            watched = [path for path, _ in self._watches]
            if not (self._is_new_enough() and self._add_watches(watched) and self._learn_access()):
                time.sleep(RETRY_SECONDS)
            elif self._are_all(watched, connection):
                break
        else:
            return
        for path, notify in self._watches:
            notify(path)
        for listener in self._listeners:
            listener(True)

    def _is_new_enough(self) -> bool:
        try:
            _wait(kazoo_requests.read_async(self._client, ["/"]))
        except UnimplementedError:
            if not self.too_old:
                log.error("ZooKeeper is older than 3.6 and is not used: upgrade it")
            self.too_old = True
            self._greeted.set()
            return False
        except UnavailableError as error:
            log.debug("the server's version could not be checked, retrying: %s", error)
            return False
        return True

    def _add_watches(self, watched: Sequence[str]) -> bool:
        try:
            for path in dict.fromkeys(watched):
                self._add_watch(path)
        except UnavailableError as error:
            log.debug("watches could not be added, retrying: %s", error)
            return False
        return True

    def _add_watch(self, path: str) -> None:
        _wait(kazoo_requests.watch_async(self._client, path))

    def _are_all(self, added: Sequence[str], connection: int) -> bool:
        """Accept calls, and return True, unless the connection changed or a watch was requested."""
        with self._changing:
            done = self._connection == connection and len(added) == len(self._watches)
            if done:
                self._handler.connected()
                self._ready.set()
                self._greeted.set()
        return done

    def _on_event(self, path: str) -> None:
        for watched, notify in self._watches:
            if path == watched or path.startswith(watched.rstrip("/") + "/"):
                notify(path)


def _wait(call: Any) -> Any:
    """Return an async kazoo call's result within ``CALL_SECONDS``. Raises kazoo's ``CONFLICTS`` and
    UnimplementedError, ForbiddenError, and UnavailableError for all other failures."""
    try:
        return call.get(timeout=CALL_SECONDS)
    except (*CONFLICTS, UnimplementedError):
        raise
    except (KazooException, KazooTimeoutError) as error:
        raise _unavailable(error) from error


def _if_there(call: Any) -> Any:
    """Return the result as ``_wait`` does; None when the znode is absent."""
    try:
        return _wait(call)
    except NoNodeError:
        return None


def _unavailable(error: Exception, path: str = "") -> UnavailableError:
    if isinstance(error, NoAuthError):
        refusal = access_lists.OTHER_CREDENTIAL
        return ForbiddenError(f"{path}: {refusal}" if path else refusal)
    return UnavailableError(f"ZooKeeper: {type(error).__name__} {error}".rstrip())


def _in_flight(calls: Iterable[Any], most: int) -> Iterator[Any]:
    """Yield calls in order, with at most ``most`` of them unanswered at once."""
    made: deque[Any] = deque()
    for call in calls:
        made.append(call)
        if len(made) == most:
            yield made.popleft()
    yield from made


def _versions(writes: Sequence[Write], results: Sequence[Any], refusal: str) -> list[Version]:
    """Return each Put's new version, or raise the transaction's error, ``refusal`` if forbidden."""
    for write, result in zip(writes, results, strict=True):
        if isinstance(result, CONFLICTS):
            raise ConflictError(_conflict(write, result)) from result
        if isinstance(result, NoAuthError):
            raise ForbiddenError(f"{write.path}: {refusal}") from result
    versions = []
    for write, result in zip(writes, results, strict=True):
        if isinstance(result, KazooException):
            raise UnavailableError(f"ZooKeeper: {write.path}: {type(result).__name__}") from result
        if isinstance(write, Put):
            created = not isinstance(result, ZnodeStat)
            versions.append(Version(0 if created else result.version))
    return versions


def _decode(path: ZPath[R], answer: Any) -> Found[R]:
    if answer is None:
        return None
    if isinstance(answer, NoAuthError):
        return Unreadable(path, access_lists.OTHER_CREDENTIAL, hidden=True)
    data, stat = answer
    version, written = Version(stat.version), stat.mtime / 1000
    return decoded(path, data, version, stat.ephemeralOwner, stat.czxid, written=written)


def _add(
    transaction: Any, write: Write, data: bytes, acl: Callable[[Path], list[Any] | None]
) -> None:
    """Add a write to a transaction. ``acl`` returns the list of a created znode, None if open."""
    if isinstance(write, Check):
        transaction.check(str(write.path), write.version.number)
        return
    number = write.expect.number if isinstance(write.expect, Version) else -1
    if isinstance(write, Remove):
        transaction.delete(str(write.path), number)
    elif write.expect is ABSENT:
        ephemeral = write.path.row.lifetime == "ephemeral"
        transaction.create(str(write.path), data, acl(write.path), ephemeral=ephemeral)
    else:
        transaction.set_data(str(write.path), data, number)


def _conflict(write: Write, result: KazooException) -> str:
    conflict = {
        BadVersionError: "was changed by someone else",
        NodeExistsError: "exists already",
        NoNodeError: "does not exist (or its parent does not)",
        NotEmptyError: "still has children",
    }
    return f"znode {write.path} {conflict[type(result)]}"
