"""One contract for every store: each test runs on the fakes and on a real ZooKeeper."""

from __future__ import annotations

import queue
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Check,
    Put,
    Remove,
    Store,
    Version,
    Versioned,
    Write,
)
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.control.zookeeper.transaction import LIMIT_BYTES, TooLargeError
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.security.roles import DIRECTORY
from tests.testkit.certificates import Certificates
from tests.testkit.simulation import Ensemble, Session
from tests.testkit.store import FakeStore, FakeTree, RealZooKeeper
from zkschema import paths, records

Connect = Callable[[], Store]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """host:port of a ZooKeeper with a secure port, and a directory of certificates for it."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    folder = certificates.folder("zookeeper", "admin")
    server = RealZooKeeper(tmp_path_factory.mktemp("secure"), folder)
    server.start()
    yield server.address, folder
    server.kill()


@pytest.fixture(params=["fake", "model", "zookeeper", "tls"])
def connect_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connect]:
    """Opens any number of sessions on one empty tree."""
    opened: list[Store] = []
    if request.param == "fake":
        tree = FakeTree()

        def open_store() -> Store:
            opened.append(FakeStore(tree))
            return opened[-1]
    elif request.param == "model":
        ensemble = Ensemble()

        def open_store() -> Store:
            opened.append(Session(ensemble))
            return opened[-1]
    else:
        if request.param == "tls":
            address, folder = request.getfixturevalue("secure")
            monkeypatch.setenv(DIRECTORY, str(folder))
        else:
            address = request.getfixturevalue("zookeeper")
        hosts = f"{address}/contract-{uuid.uuid4().hex[:12]}"

        def open_store() -> Store:
            opened.append(connect(hosts))
            return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def any_store(connect_once: Connect) -> Store:
    store = connect_once()
    store.make_root()
    for path in (paths.flows(), paths.live(), paths.live_nodes()):
        store.write(path, None, ABSENT)
    return store


def flow(revision: int) -> records.Flow:
    return records.Flow(revision=revision)


REVISION = records.Revision(text="", author="", reason="", time=0.0)
LIVE = records.LiveNode(uuid="u", incarnation="i", pid=1, version="0", since=0.0)


def test_read_returns_the_written_value_with_its_version(any_store: Store) -> None:
    assert any_store.read(paths.flow("web")) is None
    assert any_store.write(paths.flow("web"), flow(1), ABSENT) == Version(0)
    assert any_store.write(paths.flow("web"), flow(2), Version(0)) == Version(1)
    found = any_store.read(paths.flow("web"))
    assert found is not None
    assert (found.value, found.version, found.session) == (flow(2), Version(1), 0)


def test_removed_and_recreated_znode_is_a_different_znode(any_store: Store) -> None:
    def created() -> int:
        found = any_store.read(paths.flow("web"))
        assert found is not None
        return found.created

    any_store.write(paths.flow("web"), flow(1), ABSENT)
    first = created()
    any_store.write(paths.flow("web"), flow(2), Version(0))
    assert created() == first
    any_store.remove(paths.flow("web"), ANY)
    any_store.write(paths.flow("web"), flow(1), ABSENT)
    assert created() > first


def test_version_zero_is_a_version(any_store: Store) -> None:
    """The classic slip: 0 taken for "no version" would overwrite an existing value."""
    any_store.write(paths.flow("web"), flow(1), ABSENT)
    any_store.write(paths.flow("web"), flow(2), Version(0))
    with pytest.raises(ConflictError, match="/flows/web"):
        any_store.write(paths.flow("web"), flow(3), Version(0))


def test_absent_refuses_an_existing_znode_and_a_version_a_missing_one(any_store: Store) -> None:
    any_store.write(paths.flow("web"), flow(1), ABSENT)
    with pytest.raises(ConflictError, match="exists already"):
        any_store.write(paths.flow("web"), flow(2), ABSENT)
    with pytest.raises(ConflictError, match="does not exist"):
        any_store.write(paths.flow("other"), flow(2), Version(0))


def test_write_with_any_creates_or_overwrites(any_store: Store) -> None:
    any_store.write(paths.flow("web"), flow(1), ANY)
    any_store.write(paths.flow("web"), flow(2), ANY)
    found = any_store.read(paths.flow("web"))
    assert found is not None
    assert found.value == flow(2)


def test_commit_is_all_or_nothing_and_names_the_conflict(any_store: Store) -> None:
    any_store.write(paths.flow("a"), flow(1), ABSENT)
    with pytest.raises(ConflictError, match="/flows/a was changed"):
        any_store.commit(
            [
                Put(paths.flow("b"), flow(1), ABSENT),
                Check(paths.flow("a"), Version(7)),
                Remove(paths.flow("a"), ANY),
            ]
        )
    assert any_store.children(paths.flows()) == ["a"]


def test_commit_returns_the_version_of_each_put(any_store: Store) -> None:
    any_store.write(paths.flow("a"), flow(1), ABSENT)
    versions = any_store.commit(
        [
            Check(paths.flow("a"), Version(0)),
            Put(paths.flow("a"), flow(2), Version(0)),
            Put(paths.flow("b"), flow(1), ABSENT),
        ]
    )
    assert versions == [Version(1), Version(0)]


def test_transactions_sent_together_fail_independently(any_store: Store) -> None:
    flows = [f"f{number}" for number in range(250)]
    any_store.write(paths.flow("f3"), flow(9), ABSENT)
    any_store.write(paths.flow("f200"), flow(9), ABSENT)
    refused = any_store.commit_each([[Put(paths.flow(name), flow(1), ABSENT)] for name in flows])
    assert {name: str(why) for name, why in zip(flows, refused, strict=True) if why} == {
        "f3": "znode /flows/f3 exists already",
        "f200": "znode /flows/f200 exists already",
    }
    found = any_store.read_many([paths.flow(name) for name in flows])
    assert {name for name, f in zip(flows, found, strict=True) if f and f.value == flow(1)} == {
        *flows
    } - {"f3", "f200"}


def test_transactions_sent_together_are_done_in_order(any_store: Store) -> None:
    any_store.write(paths.flow("a"), flow(0), ABSENT)
    any_store.commit_each(
        [[Put(paths.flow("a"), flow(number + 1), Version(number))] for number in range(250)]
    )
    found = any_store.read(paths.flow("a"))
    assert found is not None
    assert (found.value, found.version) == (flow(250), Version(250))
    any_store.commit_each([])


def test_oversized_value_refuses_its_own_transaction_only(any_store: Store) -> None:
    large = records.Flow(revision=1, state=random.Random(1).randbytes(100_000).hex())
    refused = any_store.commit_each(
        [
            [Put(paths.flow("a"), flow(1), ABSENT)],
            [Put(paths.flow("b"), large, ABSENT)],
            [Put(paths.flow("c"), flow(1), ABSENT)],
        ]
    )
    assert [type(error) for error in refused] == [type(None), UserError, type(None)]
    assert any_store.children(paths.flows()) == ["a", "c"]


def test_remove_keeps_a_znode_with_children(any_store: Store) -> None:
    any_store.write(paths.flow("a"), flow(1), ABSENT)
    any_store.write(paths.revisions("a"), None, ABSENT)
    with pytest.raises(ConflictError, match="still has children"):
        any_store.remove(paths.flow("a"), ANY)
    any_store.remove(paths.revisions("a"), ANY)
    any_store.remove(paths.flow("a"), Version(0))
    assert any_store.read(paths.flow("a")) is None


def test_read_many_keeps_the_order_and_marks_missing_znodes(any_store: Store) -> None:
    any_store.write(paths.flow("b"), flow(2), ABSENT)
    found = any_store.read_many([paths.flow("a"), paths.flow("b")])
    assert [f and f.value.revision for f in found] == [None, 2]


def test_ephemeral_znodes_go_with_their_session(any_store: Store, connect_once: Connect) -> None:
    other = connect_once()
    other.write(paths.live_node("n1"), LIVE, ABSENT)
    found = any_store.read(paths.live_node("n1"))
    assert found is not None
    assert found.session == other.session != any_store.session
    other.close()
    assert any_store.read(paths.live_node("n1")) is None


def test_watch_covers_the_subtree_and_stays_set(any_store: Store, connect_once: Connect) -> None:
    looks: queue.Queue[str] = queue.Queue()
    any_store.watch(paths.flows(), looks.put)
    writer = connect_once()
    for revision in range(3):
        writer.write(paths.flow("web"), flow(revision), ANY)
        assert looks.get(timeout=60) == "/flows/web"
    writer.write(paths.live_node("n1"), LIVE, ABSENT)
    writer.remove(paths.flow("web"), ANY)
    assert looks.get(timeout=60) == "/flows/web"
    assert looks.empty()


def test_watch_follows_znodes_created_and_removed_below_it(
    any_store: Store, connect_once: Connect
) -> None:
    """Each change is reported at least once, also of znodes made, removed and made again."""
    looks: queue.Queue[str] = queue.Queue()
    any_store.watch(paths.flows(), looks.put)
    writer = connect_once()

    def told(path: str) -> None:
        while looks.get(timeout=60) != path:
            pass

    for _ in range(3):
        writer.write(paths.flow("web"), flow(1), ABSENT)
        told("/flows/web")
        writer.commit([Remove(paths.flow("web"), ANY), Put(paths.flow("web"), flow(1), ABSENT)])
        writer.write(paths.revisions("web"), None, ABSENT)
        told("/flows/web/revisions")
        writer.write(paths.revision("web", "1"), REVISION, ABSENT)
        told("/flows/web/revisions/1")
        for path in (paths.revision("web", "1"), paths.revisions("web"), paths.flow("web")):
            writer.remove(path, ANY)
            told(str(path))


def test_too_large_value_is_refused_before_it_is_sent(any_store: Store) -> None:
    huge = records.Flow(revision=1, extra={"padding": random.Random(1).randbytes(100_000).hex()})
    with pytest.raises(UserError, match="at most 4096 fit"):
        any_store.write(paths.flow("web"), huge, ABSENT)


def test_fields_of_a_newer_writer_survive_a_read_modify_write(any_store: Store) -> None:
    any_store.write(paths.flow("web"), records.Flow(revision=1, extra={"colour": "red"}), ABSENT)
    found = any_store.read(paths.flow("web"))
    assert found is not None
    assert found.value.extra == {"colour": "red"}


def test_dump_has_every_znode(any_store: Store) -> None:
    any_store.write(paths.flow("web"), flow(1), ABSENT)
    assert sorted(any_store.dump()) == ["/flows", "/flows/web", "/live", "/live/nodes"]


def test_missing_root_reads_as_empty_and_is_not_created(connect_once: Connect) -> None:
    """A mistyped chroot is not made by looking."""
    store = connect_once()
    assert store.read(paths.schema()) is None
    assert store.children(paths.flows()) == []
    assert store.dump() == {}
    store.make_root()
    store.make_root()
    store.write(paths.flows(), None, ABSENT)
    assert store.exists(paths.flows())


def test_look_gives_each_znode_and_folder_in_order(any_store: Store) -> None:
    """Also of more than one request holds, and where some of them are not there."""
    for number in range(0, 130, 2):
        any_store.write(paths.flow(f"f{number}"), flow(number), ABSENT)
        any_store.write(paths.revisions(f"f{number}"), None, ABSENT)
    names = [f"f{number}" for number in range(130)]
    folders = [*map(paths.flow, names), paths.flows()]
    found, listed = any_store.look([paths.flow(name) for name in names], folders)
    assert [one.value.revision if isinstance(one, Versioned) else None for one in found] == [
        None if number % 2 else number for number in range(130)
    ]
    assert listed[:-1] == [[] if number % 2 else ["revisions"] for number in range(130)]
    assert sorted(listed[-1]) == sorted(names[::2])


def removals_of(store: Store, size: int) -> list[Write]:
    """Removals of missing znodes that take so many bytes in one transaction."""
    long = Remove(paths.flow("x" * 200), ANY)
    writes: list[Write] = [long] * ((size - 500) // store.scale.weigh(long))
    least = store.scale.weigh(Remove(paths.flow("x"), ANY)) - 1
    left = size - store.scale.total(writes)
    parts = [left // 4 + (n < left % 4) for n in range(4)]
    return [*writes, *(Remove(paths.flow("y" * (part - least)), ANY) for part in parts)]


def test_largest_transaction_that_a_server_takes_is_sent(any_store: Store) -> None:
    writes = removals_of(any_store, LIMIT_BYTES)
    assert any_store.scale.total(writes) == LIMIT_BYTES
    with pytest.raises(ConflictError, match="does not exist"):
        any_store.commit(writes)


def test_transaction_of_one_byte_more_is_refused_and_nothing_else_is_lost(any_store: Store) -> None:
    writes = removals_of(any_store, LIMIT_BYTES + 1)
    with pytest.raises(TooLargeError, match=f"takes {LIMIT_BYTES + 1} bytes"):
        any_store.commit(writes)
    put = Put(paths.flow("web"), flow(1), ABSENT)
    refused, done = any_store.commit_each([writes, [put]])
    assert isinstance(refused, TooLargeError)
    assert done is None
    assert any_store.read(paths.flow("web")) is not None
