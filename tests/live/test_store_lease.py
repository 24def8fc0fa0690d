"""The lease clock on real servers that are frozen, cut off, or end a session."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.node.registration import Identity, Registration
from flumeng.connectors.api.ranged import Range
from flumeng.control.zookeeper import ABSENT, ANY, Store, tree
from flumeng.control.zookeeper.kazoo_store import CALL_SECONDS, ZooKeeperStore, connect
from flumeng.platform.errors import ConflictError, FlumengError, UnavailableError
from tests.testkit.collector import register
from tests.testkit.light_nodes import ClaimsInMemory
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from tests.testkit.zookeeper import Proxy, Server
from zkschema import paths, records
from zkschema.bootstrap import CURSOR_MAIN, flow_folders

SESSION_SECONDS = 6.0
STOP_SECONDS = SESSION_SECONDS * 2 / 3
LATE_SECONDS = 2.0
"""Tolerance for a busy machine."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("zookeeper") / "1", 1, [])
    server.start()
    wait_for(server.mode)
    yield server
    server.kill()


@pytest.fixture
def hosts(server: Server) -> str:
    """A chroot with an empty cluster and the flow ``web``."""
    hosts = f"{server.address}/{uuid.uuid4().hex}"
    store = connect(hosts)
    tree.init(store)
    store.write(paths.flow("web"), records.Flow(revision=1), ABSENT)
    for folder in flow_folders("web"):
        store.write(folder, None, ABSENT)
    store.close()
    return hosts


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


def through(proxy: Proxy, hosts: str) -> str:
    return f"{proxy.address}/{hosts.partition('/')[2]}"


class Owner(threading.Thread):
    """Acks one event after the other and claims again after each error, as a collector does."""

    def __init__(self, store: Store) -> None:
        super().__init__(name="owner", daemon=True)
        self.store = store
        self.acked_at = self.refused_at = self.longest = 0.0
        self.acked = 0
        self.conflicts: list[str] = []
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self._own()
            except ConflictError as error:
                self.conflicts.append(str(error))
            except UnavailableError:
                self.refused_at = time.monotonic()
                self.longest = max(self.longest, self.refused_at - max(began, self.acked_at))
            time.sleep(0.01)

    def _own(self) -> None:
        register(self.store, "web", "j")
        acks = Acks.claim(self.store, Publisher(self.store, gap_seconds=0.0), "web", 1, ["j"])
        while not self._ended.is_set():
            if not self.store.connected:
                raise UnavailableError("paused")
            acks.advance([Range("j", acks.offsets["j"], acks.offsets["j"] + 1)])
            self.acked_at, self.acked = time.monotonic(), acks.offsets["j"]
            time.sleep(0.01)

    def goes_on(self) -> None:
        before = self.acked
        wait_for(lambda: self.acked > before + 10)

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()
        self.store.close()


def ack(hosts: str) -> records.Ack:
    store = connect(hosts)
    found = store.read(paths.ack("web", CURSOR_MAIN, "j"))
    store.close()
    assert found is not None
    return found.value


def test_owner_stops_at_two_thirds_of_the_timeout_of_a_frozen_server(
    server: Server, hosts: str
) -> None:
    """And goes on afterwards. kazoo itself would be SUSPENDED at most, and LOST only once the
    server is back."""
    owner = Owner(connect(hosts, session_seconds=SESSION_SECONDS))
    owner.start()
    wait_for(lambda: owner.acked > 10)
    session = owner.store.session
    server.freeze()
    frozen_at = time.monotonic()
    wait_for(lambda: not owner.store.connected, seconds=STOP_SECONDS + LATE_SECONDS)
    stopped_after = time.monotonic() - frozen_at
    assert stopped_after > STOP_SECONDS / 2, "it must not stop at the first late answer"
    assert owner.acked_at - frozen_at < LATE_SECONDS

    for call in (
        lambda: owner.store.read(paths.cluster()),
        lambda: owner.store.write(paths.flow("x"), records.Flow(revision=1), ANY),
        lambda: owner.store.children(paths.flows()),
    ):
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            call()
        assert time.monotonic() - began < CALL_SECONDS / 2, "a call blocked"

    server.thaw()
    owner.goes_on()
    assert owner.conflicts == []
    assert session, "there was a session"
    owner.end()
    assert ack(hosts) == records.Ack(epoch=1, offset=owner.acked)


def test_negotiated_timeout_counts_and_not_the_requested_one(hosts: str) -> None:
    """The server grants at most 60 s."""
    store = ZooKeeperStore(hosts, 600.0)
    assert store.wait_connected(PATIENCE_SECONDS)
    assert 30 < store._lease.left_seconds <= 40
    store.close()


def test_idle_session_proves_its_life_by_itself(hosts: str) -> None:
    store = connect(hosts, session_seconds=SESSION_SECONDS)
    ends = time.monotonic() + SESSION_SECONDS
    while time.monotonic() < ends:
        assert store.connected
        time.sleep(0.02)
    store.close()


def test_process_that_slept_is_refused_until_its_session_is_proven_again(hosts: str) -> None:
    """When it wakes kazoo takes it for connected, and a write would be on its way at once."""
    slept_seconds = [0.0]
    store = ZooKeeperStore(hosts, SESSION_SECONDS, lambda: time.monotonic() + slept_seconds[0])
    assert store.wait_connected(PATIENCE_SECONDS)
    slept_seconds[0] = 60.0
    assert not store.connected
    with pytest.raises(UnavailableError, match="session may be over"):
        store.write(paths.flow("x"), records.Flow(revision=1), ABSENT)
    wait_for(lambda: store.connected)
    assert store.write(paths.flow("x"), records.Flow(revision=1), ABSENT)
    store.close()


def test_silent_server_is_left_also_under_many_requests(hosts: str, proxy: Proxy) -> None:
    """kazoo takes each request that it sends for a ping, whether anything answers or not."""
    store = connect(through(proxy, hosts), session_seconds=SESSION_SECONDS)
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            store._client.get_async("/")  # type: ignore[attr-defined]
            time.sleep(0.1)

    lost = threading.Event()
    store.on_session(lambda connected: None if connected else lost.set())
    threading.Thread(target=ask, daemon=True).start()
    proxy.drop_replies()
    assert lost.wait(STOP_SECONDS + LATE_SECONDS), "it still waits"
    proxy.heal()
    wait_for(lambda: store.connected)
    ended.set()
    store.close()


def test_write_whose_reply_was_lost_is_recognised(hosts: str, proxy: Proxy) -> None:
    owner = Owner(connect(through(proxy, hosts), session_seconds=SESSION_SECONDS))
    owner.start()
    for _ in range(3):
        owner.goes_on()
        proxy.drop_replies()
        time.sleep(0.3)
        proxy.heal()
    owner.goes_on()
    owner.end()
    assert owner.conflicts == []
    assert ack(hosts) == records.Ack(epoch=1, offset=owner.acked)


def test_a_node_is_live_again_after_its_session_was_ended(hosts: str) -> None:
    store = connect(hosts, session_seconds=SESSION_SECONDS)
    watcher = connect(hosts)
    me = Registration(store, Identity("n1", "u1", ("ingest",), "", {}), ClaimsInMemory())
    me.register()
    me.announce(("h:1",))
    before = store.session

    end_session(store, hosts)
    wait_for(lambda: watcher.read(paths.live_node("n1")) is None)
    wait_for(lambda: _announced(me))
    found = watcher.read(paths.live_node("n1"))
    assert found is not None
    assert found.session == store.session != before
    store.close()
    watcher.close()


def test_znode_of_an_earlier_process_is_taken_over_before_it_expires(hosts: str) -> None:
    """The node was killed and is back before its session has expired."""
    old, new = connect(hosts, session_seconds=60), connect(hosts)
    identity = Identity("n1", "u1", ("ingest",), "", {})
    Registration(old, identity, ClaimsInMemory()).announce(("h:1",))
    Registration(new, identity, ClaimsInMemory()).announce(("h:2",))
    end_session(old, hosts)
    found = new.read(paths.live_node("n1"))
    assert found is not None
    assert (found.value.addresses, found.session) == (("h:2",), new.session)
    new.close()


def _announced(me: Registration) -> bool:
    try:
        me.announce(("h:1",))
    except FlumengError:
        return False
    return True


def end_session(store: Store, hosts: str) -> None:
    """Take the session over and close it: for its owner it has expired."""
    identity = store._client.client_id  # type: ignore[attr-defined]
    thief = KazooClient(hosts, client_id=identity)
    thief.start()
    thief.stop()
    thief.close()


def test_close_of_a_store_on_a_frozen_server_returns_soon(server: Server, hosts: str) -> None:
    store = connect(hosts, session_seconds=30)
    server.freeze()
    began = time.monotonic()
    store.close()
    took = time.monotonic() - began
    server.thaw()
    assert took < CALL_SECONDS + LATE_SECONDS
