"""Access lists of journals with replicas follow their records, after a change by any node.

Protects that a replica may read the primary's name, that the primary may write its own, and that
no other node may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster, set_access
from flumeng.control.master.journal_access import (
    ACKS_AGAIN_SECONDS,
    AGAIN_SECONDS,
    CHECKS,
    JournalAccess,
)
from flumeng.control.planner.actions import Replicate
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import ABSENT, AccessList, Path, Version, tree
from flumeng.platform.errors import ForbiddenError
from tests.testkit.store import FakeStore
from tests.unit.control.planning import cluster, flow
from zkschema import paths
from zkschema.access import Secured
from zkschema.records import Ack, Journal

NAME = "f.n1.0.0123abcd"
PATH = paths.journal(NAME)
BEFORE = Journal(
    flow="f",
    node="n1",
    primary="n1",
    term=1,
    in_sync=("n1/a", "n2/b"),
    replicas=("n1", "n2"),
    lineage="l",
)
PROMOTED = replace(BEFORE, primary="n2", term=2, in_sync=("n2/b",), replicas=("n2", "n3"))


class Refusing(FakeStore):
    """The lists of journals belong to an administrator, as in earlier versions."""

    def set_access_lists(self, wanted: Mapping[str, AccessList]) -> int:
        if str(PATH) in wanted:
            raise ForbiddenError("no")
        return super().set_access_lists(wanted)


class World:
    """One journal in a secured cluster of three nodes, and the master that looks after it."""

    def __init__(self, store: FakeStore) -> None:
        self.store, self.now = store, 0.0
        tree.init(store)
        members = ["node:n1", "node:n2", "node:n3"]
        self.secure(members)
        store.write(PATH, BEFORE, ABSENT)
        self.record, self.version = BEFORE, 0
        self.lists = JournalAccess(store, lambda: self.now)

    def secure(self, members: list[str]) -> None:
        secure_cluster(Operator(self.store, "a", "", 1.0), cluster="c", admit=members)

    def follow(self, *actions: Replicate, mine: bool = True) -> Mapping[str, str]:
        return self.lists.follow(Secured.of(tree.require(self.store)), self._seen(mine), actions)

    def _seen(self, mine: bool) -> Snapshot:
        seen = cluster(
            [flow()],
            [],
            journals={NAME: self.record},
            journal_versions={NAME: Version(self.version)},
        )
        return seen if mine else replace(seen, mine=frozenset())

    def change(self, record: Journal) -> None:
        self.store.write(PATH, record, Version(self.version))
        self.record, self.version = record, self.version + 1

    @property
    def may(self) -> dict[str, str]:
        return self.may_of(PATH)

    def may_of(self, path: Path) -> dict[str, str]:
        said = self.store.tree.znodes[str(path)].access
        prefix = "x509:CN=node:"
        return {w.removeprefix(prefix)[:2]: what for w, what in said if w.startswith(prefix)}


@pytest.fixture
def world() -> World:
    return World(FakeStore())


def test_replica_reads_the_record_and_the_primary_writes_it(world: World) -> None:
    assert world.may == {"n1": "rw"}
    assert world.follow() == {}
    assert world.may == {"n1": "rw", "n2": "r"}
    world.change(PROMOTED)
    world.follow()
    assert world.may == {"n1": "rw", "n2": "rw", "n3": "r"}
    assert set_access(world.store) == 0, "the schema says the same"


def test_promoted_primary_may_read_the_acks(world: World) -> None:
    """Also acks that are made only then, by any collector."""
    world.store.write(paths.acks("f"), None, ABSENT)
    world.store.write(paths.cursor("f", "main"), None, ABSENT)
    world.change(PROMOTED)
    world.follow()
    ack = paths.ack("f", "main", NAME)
    world.store.write(ack, Ack(epoch=1, offset=5), ABSENT)
    assert world.may_of(ack) == {"n1": "r"}
    world.now += ACKS_AGAIN_SECONDS
    world.follow()
    assert world.may_of(ack) == {"n1": "r", "n2": "r"}
    assert set_access(world.store) == 0, "the schema says the same"


def test_access_list_is_set_before_the_record_that_needs_it(world: World) -> None:
    action = Replicate(NAME, PROMOTED, Version(0), ())
    world.follow(action)
    assert world.may == {"n1": "rw", "n2": "rw", "n3": "r"}
    world.follow()  # the write was refused
    assert world.may == {"n1": "rw", "n2": "r"}


def test_access_list_changed_by_another_is_corrected_in_the_end(world: World) -> None:
    world.follow()
    world.store.set_access_lists({str(PATH): ()})
    world.follow()
    assert world.may == {}
    world.now += AGAIN_SECONDS
    world.follow()
    assert world.may == {"n1": "rw", "n2": "r"}


def test_many_lists_take_many_turns_and_a_promotion_waits_for_none(world: World) -> None:
    world.lists.checks = 0
    world.follow()
    assert (world.lists.waiting, world.may) == (True, {"n1": "rw"})
    world.follow(Replicate(NAME, PROMOTED, Version(0), ()))
    assert (world.lists.waiting, world.may) == (False, {"n1": "rw", "n2": "rw", "n3": "r"})
    world.change(PROMOTED)
    world.lists.checks = CHECKS
    world.follow()
    assert not world.lists.waiting


def test_journals_of_other_masters_are_left_alone(world: World) -> None:
    world.follow(mine=False)
    assert world.may == {"n1": "rw"}


def test_node_admitted_later_is_in_the_lists(world: World) -> None:
    world.change(replace(PROMOTED, replicas=("n2", "n4")))
    world.follow()
    world.secure(["node:n4"])
    assert world.may == {"n1": "rw", "n2": "rw", "n4": "r"}
    assert set_access(world.store) == 0, "the schema says the same"


def test_open_cluster_costs_no_request() -> None:
    store = FakeStore()
    lists = JournalAccess(store, lambda: 0.0)
    store.cut()
    assert lists.follow(None, cluster([flow()], []), ()) == {}


def test_access_list_that_a_master_may_not_change_is_reported() -> None:
    world = World(Refusing())
    (why,) = (why for topic, why in world.follow().items() if topic == f"journal {NAME}")
    assert "flumeng schema verify --fix" in why
