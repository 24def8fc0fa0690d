"""The store on a real ZooKeeper that dies and comes back: kazoo's traps stay behind the door."""

from __future__ import annotations

import contextlib
import queue
import shutil
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from flumeng.control.zookeeper import ABSENT, ANY, tree
from flumeng.control.zookeeper.kazoo_store import CALL_SECONDS, ZooKeeperStore, connect
from flumeng.platform.errors import UnavailableError, UserError
from tests.testkit.links import Links
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for
from tests.testkit.zookeeper import Proxy
from zkschema import paths, records
from zkschema.verify import verify

MULTI_READ, ADD_WATCH = 22, 106


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealZooKeeper]:
    server = RealZooKeeper(tmp_path / "zookeeper")
    server.start()
    yield server
    server.kill()


def test_credentials_added_while_reads_are_under_way_get_their_own_answers(
    server: RealZooKeeper,
) -> None:
    """ZooKeeper answers an added credential before the reads that came before it."""
    store = connect(f"{server.address}/c")
    tree.init(store)
    assert isinstance(store, ZooKeeperStore)
    client = store._client
    for number in range(50):
        reads = [client.get_async("/flows") for _ in range(100)]
        added = client.add_auth_async("digest", f"user{number}:password")
        more = [client.get_async("/flows") for _ in range(100)]
        assert added.get(timeout=CALL_SECONDS) is True
        assert {read.get(timeout=CALL_SECONDS)[0] for read in (*reads, *more)} == {b""}
    assert store.connected
    store.close()


def test_unexpected_error_of_the_connection_is_a_dropped_connection(server: RealZooKeeper) -> None:
    store = connect(f"{server.address}/c")
    tree.init(store)
    assert isinstance(store, ZooKeeperStore)
    looks: queue.Queue[str] = queue.Queue()
    store.watch(paths.flows(), looks.put)
    connection = store._client._connection
    read_watch_event, errors = connection._read_watch_event, [ValueError("damaged event")]

    def fails_once(buffer: bytes, offset: int) -> None:
        if errors:
            raise errors.pop()
        read_watch_event(buffer, offset)

    connection._read_watch_event = fails_once
    with contextlib.suppress(UnavailableError):  # the connection may drop before the answer
        store.write(paths.flow("web"), records.Flow(revision=1), ABSENT)
    assert looks.get(timeout=60) == "/flows", "watchers look again after the reconnect"
    assert not errors
    wait_for(lambda: store.connected)
    assert store.read(paths.flow("web")) is not None
    store.close()


def test_watches_and_writes_work_again_after_the_server_was_killed(server: RealZooKeeper) -> None:
    store = connect(f"{server.address}/c")
    tree.init(store)
    looks: queue.Queue[str] = queue.Queue()
    store.watch(paths.flows(), looks.put)

    server.kill()
    wait_for(lambda: not store.connected)
    started = time.monotonic()
    with pytest.raises(UnavailableError):
        store.read(paths.cluster())
    assert time.monotonic() - started < CALL_SECONDS / 2, (
        "a call blocked while there was no connection"
    )

    server.start()
    assert looks.get(timeout=60) == "/flows", "nobody was told to look after the reconnect"
    store.write(paths.flow("web"), records.Flow(revision=1), ABSENT)
    assert looks.get(timeout=60) == "/flows/web", "the watch did not survive the reconnect"
    store.close()


def test_store_connects_to_a_server_whose_data_was_wiped(server: RealZooKeeper) -> None:
    """The server drops clients without an answer that have seen more than it has."""
    store = connect(f"{server.address}/c")
    tree.init(store)
    session, looks = store.session, queue.Queue[str]()
    store.watch(paths.flows(), looks.put)

    server.kill()
    shutil.rmtree(server.data)
    server.start()

    assert looks.get(timeout=60) == "/flows", "nobody was told to look after the reconnect"
    assert store.session != session
    assert not store.exists(paths.schema())
    tree.init(store)
    store.write(paths.flow("web"), records.Flow(revision=1), ABSENT)
    assert looks.get(timeout=60).startswith("/flows"), "the watch did not survive"
    store.close()


@pytest.mark.parametrize(
    "said",
    [
        b"Zxid: 0x0\nMode: follower\n",
        b"Zxid: 0xffffffffffff\nMode: leader\n",
        b"This ZooKeeper instance is not currently serving requests\n",
    ],
)
def test_client_dropped_by_a_server_without_data_loss_keeps_its_session(
    server: RealZooKeeper, said: bytes
) -> None:
    store = connect(f"{server.address}/c", session_seconds=20)
    tree.init(store)
    session = store.session
    server.kill()
    with dropping(server.port, said) as asked:
        for _ in range(2):
            assert asked.get(timeout=60) == b"srvr"
    server.start()
    wait_for(lambda: store.connected)
    assert store.session == session
    store.close()


@contextlib.contextmanager
def dropping(port: int, said: bytes) -> Iterator[queue.Queue[bytes]]:
    """A server that answers four-letter words with that text and drops all else; returns the words
    it received."""
    asked: queue.Queue[bytes] = queue.Queue()

    class Dropped(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if (word := self.request.recv(4)).isalpha():
                asked.put(word)
                self.request.sendall(said)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

    with Server(("127.0.0.1", port), Dropped) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield asked
        server.shutdown()


def test_absent_server_is_reported_in_bounded_time(tmp_path: Path) -> None:
    absent = RealZooKeeper(tmp_path)
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=f"ZooKeeper at {absent.address}/c did not answer"):
        connect(f"{absent.address}/c", wait_seconds=1)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("hosts", ["", "/chroot", "host:port", "host:2181/"])
def test_malformed_connect_string_is_a_user_error(hosts: str) -> None:
    with pytest.raises(UserError):
        connect(hosts, wait_seconds=0.1)


def test_server_before_3_6_is_refused_by_name(zookeeper: str) -> None:
    """A proxy plays the server that knows neither recursive watches nor reads of many znodes."""
    old = Proxy(int(zookeeper.rpartition(":")[2]), refused=frozenset([MULTI_READ, ADD_WATCH]))
    started = time.monotonic()
    with pytest.raises(UserError, match=r"older than 3\.6"):
        connect(f"{old.address}/c", wait_seconds=10)
    assert time.monotonic() - started < 8, "it waited for a server that will not get newer"
    old.close()


def test_chroot_with_an_acl_is_read_with_its_credential_only(zookeeper: str) -> None:
    hosts = f"{zookeeper}/protected"
    owner = connect(hosts, credential="push:right")
    owner.make_root()
    tree.init(owner)
    owner.close()
    admin = KazooClient(hosts, auth_data=[("digest", "push:right")])
    admin.start()
    for path in ["/", "/cluster", "/flows"]:
        admin.set_acls(path, [make_digest_acl("push", "right", all=True)])
    admin.stop()

    with_it = connect(hosts, credential="push:right")
    assert with_it.read(paths.cluster()) is not None
    assert with_it.children(paths.flows()) == []
    with_it.write(paths.flow("web"), records.Flow(revision=1), ABSENT)
    with_it.close()
    for credential in ["", "push:wrong"]:
        without = connect(hosts, credential=credential)
        with pytest.raises(UnavailableError, match="the ACL requires another credential"):
            without.read(paths.cluster())
        with pytest.raises(UnavailableError, match="the ACL requires another credential"):
            without.children(paths.flows())
        without.close()


def test_an_empty_cluster_keeps_to_the_schema_and_init_repeats(server: RealZooKeeper) -> None:
    store = connect(f"{server.address}/c")
    with pytest.raises(UserError, match="schema init"):
        tree.require(store)
    assert "/schema" in tree.init(store)
    assert tree.init(store) == []
    assert verify(store.dump()) == []
    tree.require(store)
    store.write(paths.schema(), records.Schema(version=99), ANY)
    assert [problem.path for problem in verify(store.dump())] == ["/schema"]
    with pytest.raises(UserError, match="99"):
        tree.require(store)
    store.close()


def test_look_at_znodes_and_folders_is_one_request(server: RealZooKeeper) -> None:
    with Links({"far": server.port}) as links:
        store = connect(f"{links['far'].address}/c")
        tree.init(store)
        before = links["far"].counts
        found, listed = store.look([paths.cluster(), paths.schema()], [paths.flows(), paths.live()])
        asked = links["far"].counts.since(before)
        store.close()
    assert (all(found), sorted(map(len, listed))) == (True, [0, 2])
    assert (asked.requests, asked.round_trips) == ({MULTI_READ: 1}, 1)


def test_a_chroot_may_be_several_levels_deep(server: RealZooKeeper) -> None:
    for site in ("fra", "lon"):
        store = connect(f"{server.address}/flumeng/eu/{site}")
        assert tree.init(store)
        assert tree.init(store) == []
        assert verify(store.dump()) == []
        store.close()
