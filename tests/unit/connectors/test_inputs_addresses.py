"""Where journals are served is read when it is needed, and rarely otherwise."""

from __future__ import annotations

import json

import pytest

from flumeng.connectors.flows.flow_journals import FlowJournals
from flumeng.connectors.journals.addresses import DOUBT_SECONDS, REREAD_SECONDS, Addresses
from flumeng.control.zookeeper import ABSENT, ANY, Path, tree
from tests.testkit.cluster import add_journal, come_live
from tests.testkit.scripted_store import ScriptedStore
from zkschema import paths
from zkschema.records import Journal, LiveNode

JOURNAL = "web.n1.0.00000000"


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.store = ScriptedStore()
        tree.init(self.store)
        self.addresses = Addresses(self.store, lambda: self.now)

    def register(self, node: str) -> None:
        journal = Journal(flow="web", node="n1", primary=node, term=1, in_sync=(node,))
        self.store.write(paths.journal(JOURNAL), journal, ANY)

    def serve(self, node: str, address: str) -> None:
        live = LiveNode(
            uuid="u", incarnation="i", addresses=(address,), pid=1, version="0", since=0.0
        )
        path = paths.live_node(node)
        self.store.write(path, live, ANY if self.store.exists(path) else ABSENT)

    def found(self) -> str:
        self.addresses.reread(self.addresses.due([JOURNAL]))
        return self.addresses.of([JOURNAL]).get(JOURNAL, "")


@pytest.fixture
def world() -> World:
    return World()


def test_found_address_is_cached_for_a_while(world: World) -> None:
    world.register("n1")
    world.serve("n1", "a:1")
    assert world.found() == "a:1"
    looks = len(world.store.reads)
    world.now += REREAD_SECONDS - 1
    assert world.found() == "a:1"
    assert len(world.store.reads) == looks
    world.serve("n1", "a:2")
    world.now += 1
    assert world.found() == "a:2"


def test_wrong_address_is_looked_up_soon_but_not_all_the_time(world: World) -> None:
    world.register("n1")
    world.serve("n1", "a:1")
    assert world.found() == "a:1"
    looks = len(world.store.reads)
    for _ in range(10):
        world.addresses.doubt([JOURNAL])
        assert world.found() == "a:1"
    assert len(world.store.reads) == looks
    world.serve("n2", "b:1")
    world.register("n2")
    world.now += DOUBT_SECONDS
    assert world.found() == "b:1"


def test_journal_without_a_server_is_looked_up_again_soon(world: World) -> None:
    assert world.found() == ""
    world.register("n1")
    world.serve("n1", "a:1")
    world.now += DOUBT_SECONDS
    assert world.found() == "a:1"


def test_worker_that_has_not_started_has_no_address_and_is_looked_up_again_soon(
    world: World,
) -> None:
    world.register("n1")
    world.serve("n1", "")
    world.addresses.reread([JOURNAL])
    assert world.addresses.of([JOURNAL]) == {}
    world.serve("n1", "a:1")
    world.now += DOUBT_SECONDS
    assert world.found() == "a:1"


def test_known_address_is_used_while_zookeeper_is_away(world: World) -> None:
    world.register("n1")
    world.serve("n1", "a:1")
    assert world.found() == "a:1"
    world.store.cut()
    world.now += 10 * REREAD_SECONDS
    assert world.found() == "a:1"


def test_address_lookup_sets_no_watches(world: World) -> None:
    """Each of n collectors would hear of each of n nodes that come or go."""
    assert world.store._watches == []


def test_journal_is_read_from_the_worker_that_has_it(world: World) -> None:
    """Those of a worker that the node has no more are with the first."""
    names = [f"web.n1.{number}.00000000" for number in range(3)]
    for name in names:
        add_journal(world.store, name, flow="web", node="n1")
    come_live(world.store, "n1", "a:1", "a:2")
    assert world.addresses.reread(names)
    found = world.addresses.of(names)
    assert found == {names[0]: "a:1", names[1]: "a:2", names[2]: "a:1"}


def test_journal_led_by_another_node_is_with_that_nodes_first_worker(world: World) -> None:
    name = "web.n1.1.00000000"
    journal = Journal(flow="web", node="n1", primary="n2", term=2, in_sync=("n2/x",))
    world.store.write(paths.journal(name), journal, ABSENT)
    for node in ("n1", "n2"):
        addresses = (f"{node}:1", f"{node}:2")
        come_live(world.store, node, *addresses)
    world.addresses.reread([name])
    assert world.addresses.of([name]) == {name: "n2:1"}
    assert FlowJournals("web", world.store).addresses([name]) == {name: "n2:1"}


def test_damaged_record_harms_its_own_journal_only(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.register("n1")
    world.serve("n1", "a:1")
    bad = "web.n1.0.00000001"
    add_journal(world.store, bad, flow="web", node="n1")
    world.store.tree.znodes[str(paths.journal(bad))].data = b"{"
    for _ in range(3):
        world.addresses.reread([bad, JOURNAL])
        world.now += DOUBT_SECONDS
    assert world.addresses.of([bad, JOURNAL]) == {JOURNAL: "a:1"}
    assert caplog.text.count(bad) == 1


@pytest.mark.parametrize("spoilt", [paths.live_node("n2"), paths.journal("web.n2.0.00000000")])
def test_a_record_of_a_newer_version_harms_its_own_journals_only(
    world: World, caplog: pytest.LogCaptureFixture, spoilt: Path
) -> None:
    world.register("n1")
    world.serve("n1", "a:1")
    world.serve("n2", "b:1")
    other = "web.n2.0.00000000"
    add_journal(world.store, other, flow="web", node="n2")
    znode = world.store.tree.znodes[str(spoilt)]
    sound, znode.data = znode.data, json.dumps({**json.loads(znode.data), "v": 99}).encode()
    for _ in range(3):
        world.addresses.reread([other, JOURNAL])
        world.now += DOUBT_SECONDS
    assert world.addresses.of([other, JOURNAL]) == {JOURNAL: "a:1"}
    assert caplog.text.count(str(spoilt)) == 1
    znode.data = sound
    world.addresses.reread([other])
    assert world.addresses.of([other, JOURNAL]) == {JOURNAL: "a:1", other: "b:1"}


def test_invalid_journal_name_has_no_address(world: World) -> None:
    world.register("n1")
    world.serve("n1", "a:1")
    for name in ("oddname", "web.n1.worker.00000000"):
        add_journal(world.store, name, flow="web", node="n1")
    names = ["oddname", JOURNAL, "web.n1.worker.00000000"]
    world.addresses.reread(names)
    assert world.addresses.of(names) == {JOURNAL: "a:1"}


def test_doubts_become_rare_and_a_dead_node_costs_one_look_a_second(world: World) -> None:
    world.register("n1")
    world.serve("n1", "a:1")
    assert world.found() == "a:1"
    looks = len(world.store.reads)
    for _ in range(600):
        world.addresses.doubt([JOURNAL])
        world.found()
        world.now += 0.1
    assert len(world.store.reads) - looks <= 2 * 10
    world.store.remove(paths.live_node("n1"), ANY)
    world.now += REREAD_SECONDS
    looks = len(world.store.reads)
    for _ in range(100):
        world.found()
        world.now += 0.1
    assert len(world.store.reads) - looks <= 11


def test_node_of_many_journals_is_looked_at_once(world: World) -> None:
    names = [f"web.n1.0.{number:08}" for number in range(100)]
    assert world.addresses.due(names) == names
    world.addresses.reread(names)
    world.now += DOUBT_SECONDS
    world.addresses.retain(set(names[:1]))
    assert world.addresses.due(names[:1]) == names[:1]
