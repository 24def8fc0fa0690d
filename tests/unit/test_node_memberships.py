"""Who holds a replicated journal, as the node reads it for its workers and asks for changes.

Protects that no replica is removed that may be needed, that a change is made only of the record
that it was meant for, and that a node registers nothing over what another one says that leads.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from flumeng.agent.node.fenced_store import FencedStore
from flumeng.agent.node.journal_registry import ABANDONED_SECONDS, JournalRegistry
from flumeng.agent.node.registration import Identity, Registration
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.master.tidying import remove_gone
from flumeng.control.snapshot.reader import Reader
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Found,
    Path,
    Remove,
    Unreadable,
    Version,
    Write,
    tree,
)
from flumeng.journal.replication.membership import Membership
from flumeng.platform.errors import ConflictError, ForbiddenError
from tests.testkit.light_nodes import ClaimsInMemory
from tests.testkit.store import FakeStore
from zkschema import paths, records, table
from zkschema.table import ZPath

FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:5514"}}]
durability: replicated
sinks: [noop]
"""
R = TypeVar("R", bound=records.Record)
OURS, THEIRS = "web.n1.0.00000000", "web.n2.0.00000000"


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    tree.init(store)
    return store


@pytest.fixture
def memberships(store: FakeStore) -> JournalRegistry:
    return JournalRegistry(FencedStore(store), "n1", itertools.count(0, 60).__next__)  # all is due


@pytest.fixture
def registration(store: FakeStore) -> Registration:
    registration = Registration(store, Identity("n1", "u1", ("ingest",), "", {}), ClaimsInMemory())
    registration.register()
    return registration


def live(store: FakeStore, *nodes: str) -> None:
    for name in nodes:
        said = records.LiveNode(
            uuid=name, incarnation="i", pid=1, version="0", since=0.0, addresses=(f"{name}:1", "x")
        )
        store.write(paths.live_node(name), said, ABSENT)


def journal(**fields: Any) -> records.Journal:
    """Made by n1, which leads it; the replica of n2 is in sync, that of n3 is not."""
    record = records.Journal(
        flow="web",
        node="n1",
        primary="n1",
        term=4,
        in_sync=("n1/a", "n2/b"),
        replicas=("n1", "n2", "n3"),
        lineage="l",
    )
    return replace(record, **fields)


def put(store: FakeStore, name: str, **fields: Any) -> records.Journal:
    path, record = paths.journal(name), journal(**fields)
    store.write(path, record, ANY if store.exists(path) else ABSENT)
    return record


def read(store: FakeStore, name: str = OURS) -> records.Journal:
    found = store.read(paths.journal(name))
    assert found is not None
    return found.value


def created(store: FakeStore, name: str) -> int:
    found = store.read(paths.journal(name))
    assert found is not None
    return found.created


def acked(store: FakeStore, name: str, offset: int) -> Path:
    """All of the flow's events are delivered up to there."""
    apply_flow(Operator(store, "a", "", 0.0), FLOW)
    ack = paths.ack("web", "main", name)
    store.write(ack, records.Ack(epoch=1, offset=offset), ABSENT)
    return ack


def damage(store: FakeStore, name: str) -> None:
    store.tree.znodes[str(paths.journal(name))].data = b"{"


def unwanted(memberships: JournalRegistry, *replicas: str) -> list[str]:
    found = memberships.find([], replicas, dict.fromkeys(replicas, "n1/x"))
    return list(found.message["unwanted"])


# What is found.


def test_workers_are_told_who_holds_what_and_where_the_others_are(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    live(store, "n1", "n2")
    put(store, OURS)
    put(store, "app.n1.0.00000000", lineage="", replicas=(), in_sync=("n1",))
    found = memberships.find([OURS, "app.n1.0.00000000", "web.n9.0.00000000"], [], {OURS: "n1/a"})
    assert found.message == {
        "type": "replicas",
        "journals": {
            OURS: {
                "version": 0,
                "created": created(store, OURS),
                "lineage": "l",
                "term": 4,
                "primary": "n1/a",
                "in_sync": ["n1/a", "n2/b"],
                "nodes": ["n1", "n2", "n3"],
            }
        },
        "addresses": {"n2": "n2:1"},
        "ended": {},
        "unwanted": [],
    }
    assert (found.led, found.lost, found.forgotten) == ([], {}, {})


class Hiding(FakeStore):
    """Nobody but who holds a replica may read a record."""

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        return [
            Unreadable(path, "hidden", hidden=True) if path.row is table.journal else one
            for path, one in zip(wanted, super().read_each(wanted), strict=True)
        ]


def test_a_replica_goes_when_its_record_is_hidden_for_long_and_nobody_speaks_of_it(
    store: FakeStore,
) -> None:
    """In a secured cluster who holds none any more may not read that."""
    put(store, OURS, replicas=("n2", "n3"))
    clock = [0.0]
    memberships = JournalRegistry(FencedStore(Hiding(store.tree)), "n1", lambda: clock[0])

    def unwanted(at: float, **assigned: int) -> list[str]:
        clock[0] = at
        return list(memberships.find([], [OURS], {OURS: "n1/x"}, assigned).message["unwanted"])

    assert unwanted(0.0) == []
    assert unwanted(ABANDONED_SECONDS - 1, **{OURS: 3}) == []
    assert unwanted(ABANDONED_SECONDS) == [], "it was spoken of"
    assert unwanted(2 * ABANDONED_SECONDS) == [OURS]


def test_what_is_told_of_a_membership_says_all_of_it() -> None:
    one = Membership.of(journal())
    assert Membership.from_message(one.as_message()) == one


def test_a_record_without_its_primary_in_sync_is_not_told(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    put(store, OURS, in_sync=("n2/b",))
    found = memberships.find([OURS], [], {})
    assert (found.message["journals"], found.lost) == ({}, {})


def test_a_replica_that_is_no_longer_to_be_here_is_unwanted(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    put(store, THEIRS, node="n2", primary="n2")
    assert unwanted(memberships, THEIRS) == []
    put(store, THEIRS, node="n2", primary="n2", replicas=("n2", "n3"))
    assert unwanted(memberships, THEIRS) == [THEIRS]
    put(store, THEIRS, node="n2", primary="n2", gone=True)
    assert unwanted(memberships, THEIRS) == [THEIRS]


def test_a_replica_without_a_record_is_absent(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    put(store, OURS)
    found = memberships.find([], [OURS, THEIRS], {OURS: "n1/x", THEIRS: "n1/y"})
    assert (found.absent, found.message["unwanted"]) == ([THEIRS], [])


def test_a_replica_whose_record_cannot_be_read_stays(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    put(store, THEIRS, node="n2", primary="n2", replicas=("n2", "n3"))
    damage(store, THEIRS)
    assert unwanted(memberships, THEIRS) == []


def test_what_another_node_ended_is_told_to_the_maker_and_forgotten_once_gone(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    put(store, OURS, primary="n2", in_sync=("n2/b",))
    assert memberships.find([OURS], [], {}).message["ended"] == {}
    put(store, OURS, primary="n2", in_sync=("n2/b",), closed=True, end=9)
    found = memberships.find([OURS], [], {})
    assert found.message["ended"] == {OURS: {"end": 9, "gone": False}}
    assert found.forgotten == {}
    put(store, OURS, primary="n2", in_sync=("n2/b",), closed=True, end=9, gone=True)
    found = memberships.find([OURS], [], {})
    assert found.message["ended"] == {OURS: {"end": 9, "gone": True}}
    assert list(found.forgotten) == [OURS]
    put(store, OURS, closed=True, end=9)
    assert memberships.find([OURS], [], {OURS: "n1/a"}).message["ended"] == {}, "it ended its own"


def test_the_journals_of_others_that_this_node_leads_are_found(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    led: dict[str, Any] = {"node": "n2", "primary": "n1", "in_sync": ("n1/x",)}
    put(store, THEIRS, **led)
    put(store, OURS)
    assert memberships.find([OURS], [THEIRS], {}).led == [THEIRS]
    put(store, THEIRS, gone=True, **led)
    assert memberships.find([OURS], [THEIRS], {}).led == []


@pytest.mark.parametrize(
    ("ids", "lost"), [({OURS: "n1/a"}, []), ({OURS: "n1/other"}, [OURS]), ({}, [OURS])]
)
def test_a_journal_is_lost_that_this_node_leads_with_a_replica_it_does_not_have(
    store: FakeStore, memberships: JournalRegistry, ids: dict[str, str], lost: list[str]
) -> None:
    put(store, OURS)
    put(store, THEIRS, node="n2", primary="n2")
    assert list(memberships.find([OURS, THEIRS], [], ids).lost) == lost


def test_a_journal_that_is_collected_and_gone_is_not_handed_over(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    """Its record is for the node that made it alone, which would lead it again, and have all of it
    collected once more."""
    put(store, THEIRS, node="n2", primary="n1", in_sync=("n1/a", "n2/b"), closed=True, end=5)
    assert list(memberships.find([THEIRS], [], {}).lost) == [THEIRS]
    put(store, THEIRS, node="n2", primary="n1", in_sync=("n1/a", "n2/b"), closed=True, gone=True)
    assert memberships.find([THEIRS], [], {}).lost == {}


# What is changed.


def proposal(store: FakeStore, changed: Membership) -> dict[str, Any]:
    found = store.read(paths.journal(OURS))
    assert found is not None
    return {
        "type": "proposal",
        "journal": OURS,
        "version": found.version.number,
        **changed.as_message(),
    }


def test_a_change_keeps_what_is_not_the_workers_to_say(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    before = put(store, OURS, closed=True, end=7, leaving=("n2",))
    joined = Membership.of(before).joined("n3/c")
    memberships.change(proposal(store, joined))
    assert read(store) == replace(before, in_sync=("n1/a", "n2/b", "n3/c"))


def test_a_change_of_another_record_than_is_known_is_refused(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    asked = proposal(store, Membership.of(put(store, OURS)).without("n2/b"))
    after = put(store, OURS, term=5)
    with pytest.raises(ConflictError):
        memberships.change(asked)
    assert read(store) == after
    asked["version"] = 1
    damage(store, OURS)
    with pytest.raises(ConflictError):
        memberships.change(asked)
    store.remove(paths.journal(OURS), ANY)
    with pytest.raises(ConflictError):
        memberships.change(asked)
    assert not store.exists(paths.journal(OURS))


# A replica here that is lost.


def hand_over(memberships: JournalRegistry, own: str = "") -> None:
    found = memberships.find([OURS], [], {})
    memberships.hand_over(OURS, found.lost[OURS], own)


def test_another_replica_in_sync_that_is_live_leads_when_ours_is_lost(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    before = put(store, OURS, in_sync=("n1/a", "n2/b", "n3/c"))
    live(store, "n3", "n4")
    hand_over(memberships)
    assert read(store) == replace(before, primary="n3", term=5, in_sync=("n2/b", "n3/c"))
    assert memberships.leaderless == {}


def test_a_replica_that_is_not_in_sync_never_leads_by_itself(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    before = put(store, OURS)
    live(store, "n3")
    hand_over(memberships, "n1/other")
    assert read(store) == before
    ((path, why),) = memberships.leaderless.items()
    assert path == str(paths.journal(OURS))
    assert f"flumeng journal promote {OURS} --to NODE --unclean" in why
    live(store, "n2")
    hand_over(memberships, "n1/other")
    assert memberships.leaderless == {}


def test_the_replica_is_handed_over_only_as_the_record_was_read(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    put(store, OURS)
    live(store, "n2")
    found = memberships.find([OURS], [], {})
    after = put(store, OURS, term=9)
    with pytest.raises(ConflictError):
        memberships.hand_over(OURS, found.lost[OURS], "")
    assert read(store) == after


def test_the_node_that_an_operator_chose_leads_with_the_replica_that_it_has(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    """The operator does not know what the replica is called."""
    chosen = put(store, OURS, in_sync=("n1/",), term=5, lineage="m")
    hand_over(memberships, "n1/own")
    assert read(store) == replace(chosen, in_sync=("n1/own",))
    put(store, OURS, in_sync=("n1/",), term=5, lineage="m")
    hand_over(memberships)
    assert list(memberships.leaderless) == [str(paths.journal(OURS))], "it has none"


# What is registered.


def local(**fields: Any) -> dict[str, dict[str, Any]]:
    said = {"flow": "web", "term": 4, "closed": False, "end": None}
    return {OURS: {**said, "replica": "n1/a", "lineage": "l", "leads": True, **fields}}


def test_a_new_journal_is_registered_with_its_one_replica_in_a_term_of_its_own(
    store: FakeStore, registration: Registration
) -> None:
    registration.journals.enter(local(leads=False))
    expected = journal(term=5, in_sync=("n1/a",), replicas=("n1",))
    assert read(store) == expected
    registration.journals.enter(local(leads=False))
    assert read(store) == expected


def test_one_that_is_closed_before_it_was_registered_is_not(
    store: FakeStore, registration: Registration
) -> None:
    """It cannot have taken anything: it takes events once it leads."""
    registration.journals.enter(local(closed=True, end=0))
    assert not store.exists(paths.journal(OURS))


def test_what_masters_and_workers_wrote_is_not_overwritten(
    store: FakeStore, registration: Registration
) -> None:
    before = put(store, OURS, term=9, leaving=("n2",))
    registration.journals.enter(local())
    assert read(store) == before
    registration.journals.enter(local(closed=True, end=7))
    assert read(store) == replace(before, closed=True, end=7)


def test_only_who_leads_says_that_it_is_closed(
    store: FakeStore, registration: Registration
) -> None:
    before = put(store, OURS)
    registration.journals.enter(local(leads=False, closed=True, end=7))
    assert read(store) == before


def test_one_that_is_closed_is_not_opened_again(
    store: FakeStore, registration: Registration
) -> None:
    """Its primary has only just started, and does not know yet that all replicas end there."""
    before = put(store, OURS, closed=True, end=7)
    registration.journals.enter(local())
    assert read(store) == before


@pytest.mark.parametrize("leads", [False, True])
def test_one_that_another_node_leads_is_left_alone(
    store: FakeStore, registration: Registration, *, leads: bool
) -> None:
    """Also while the worker does not know yet that it does not lead any more."""
    live(store, "n2")
    before = put(store, OURS, primary="n2", in_sync=("n2/b",))
    other = {"app.n1.0.00000000": local()[OURS] | {"flow": "app"}}
    registration.journals.enter(local(leads=leads) | other)
    assert read(store) == before
    assert store.exists(paths.journal("app.n1.0.00000000"))
    assert registration.znodes.problems == {}
    assert OURS not in registration.journals.registered


def test_one_that_comes_back_to_this_node_is_registered_again(
    store: FakeStore, registration: Registration
) -> None:
    put(store, OURS, primary="n2", in_sync=("n2/b",))
    registration.journals.enter(local(leads=False))
    back = put(store, OURS)
    registration.journals.enter(local(closed=True, end=3))
    assert read(store) == replace(back, closed=True, end=3)


def test_what_this_node_leads_for_another_is_followed_and_marked_when_it_is_gone(
    store: FakeStore, registration: Registration
) -> None:
    """The node that made it may still hold events that nobody else has."""
    ack = acked(store, THEIRS, 5)
    before = put(store, THEIRS, node="n2", primary="n1", in_sync=("n1/x",), closed=True, end=5)
    registration.journals.led = [THEIRS]
    assert list(registration.journals.registered) == [THEIRS]
    assert registration.journals.acks().unneeded == (THEIRS,)
    registration.journals.deregister([THEIRS])
    assert read(store, THEIRS) == replace(before, gone=True)
    assert store.exists(ack)
    registration.look_anew()
    assert list(registration.journals.registered) == []


def test_what_another_node_ended_goes_with_its_ack(
    store: FakeStore, memberships: JournalRegistry, registration: Registration
) -> None:
    put(store, OURS, primary="n2", in_sync=("n2/b",), closed=True, end=5, gone=True)
    ack = acked(store, OURS, 5)
    registration.journals.forget(memberships.find([OURS], [], {}).forgotten)
    assert not store.exists(paths.journal(OURS))
    assert not store.exists(ack)


class MayNotRemove(FakeStore):
    """As a node in a secured cluster."""

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        if any(isinstance(write, Remove) for write in writes):
            raise ForbiddenError("nodes remove nothing")
        return super().commit(writes)


def registrations(store: FakeStore) -> list[str]:
    """After masters have tidied."""
    snapshot = Reader(store, "m", lambda: 0.0, lambda: 0.0).snapshot()
    list(remove_gone(store, snapshot))
    return store.children(paths.journals())


def test_in_a_secured_cluster_masters_remove_what_its_maker_has_forgotten(
    store: FakeStore,
) -> None:
    secured = MayNotRemove(store.tree)
    node = Registration(secured, Identity("n1", "u1", ("ingest",), "", {}), ClaimsInMemory())
    node.register()
    acked(store, OURS, 5)
    put(store, OURS, primary="n2", in_sync=("n2/b",), closed=True, end=5, gone=True)
    assert registrations(store) == [OURS]
    node.journals.forget(JournalRegistry(FencedStore(secured), "n1").find([OURS], [], {}).forgotten)
    assert registrations(store) == []


# What masters remove.


@pytest.fixture
def gone(store: FakeStore, registration: Registration) -> FakeStore:
    """A journal of n1 that another node has ended, and that is gone from there."""
    del registration  # n1 is registered
    acked(store, OURS, 5)
    put(store, OURS, primary="n2", in_sync=("n2/b",), closed=True, end=5, gone=True)
    return store


def test_one_that_is_gone_stays_while_the_node_that_made_it_may_come_back(gone: FakeStore) -> None:
    assert registrations(gone) == [OURS]


def test_one_that_is_gone_goes_when_the_node_that_made_it_has_left(gone: FakeStore) -> None:
    gone.remove(paths.node("n1"), ANY)
    assert registrations(gone) == []


def test_one_that_is_gone_goes_when_its_flow_is_deleted(gone: FakeStore) -> None:
    flow = gone.read(paths.flow("web"))
    assert flow is not None
    gone.write(paths.flow("web"), replace(flow.value, state="deleted"), flow.version)
    assert registrations(gone) == []


@pytest.mark.parametrize("fields", [{"primary": "n1", "in_sync": ("n1/a",)}, {"lineage": ""}])
def test_one_that_is_gone_and_that_nobody_awaits_goes(
    gone: FakeStore, fields: dict[str, Any]
) -> None:
    put(gone, OURS, **{"primary": "n2", "in_sync": ("n2/b",), **fields}, closed=True, gone=True)
    assert registrations(gone) == []


class LiveReads(FakeStore):
    """Counts the live znodes of nodes that are read."""

    live = 0

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        self.live += sum(path.row is paths.live_node for path in wanted)
        return super().read_each(wanted)


def test_quiet_look_reads_no_live_znode() -> None:
    store = LiveReads()
    tree.init(store)
    live(store, "n2", "n3")
    put(store, OURS)
    memberships = JournalRegistry(FencedStore(store), "n1", lambda: 0.0)
    expected = {"n2": "n2:1", "n3": "n3:1"}
    assert memberships.find([OURS], [], {}).message["addresses"] == expected
    before = store.live
    for _ in range(60):
        assert memberships.find([OURS], [], {}).message["addresses"] == expected
    assert store.live == before


def test_changed_address_of_another_node_is_read_at_the_next_look(store: FakeStore) -> None:
    live(store, "n2")
    put(store, OURS)
    memberships = JournalRegistry(FencedStore(store), "n1", lambda: 0.0)
    assert memberships.find([OURS], [], {}).message["addresses"] == {"n2": "n2:1"}
    store.remove(paths.live_node("n2"), ANY)
    live(store, "n3")
    assert memberships.find([OURS], [], {}).message["addresses"] == {"n3": "n3:1"}
    found = store.read(paths.live_node("n3"))
    assert found is not None
    moved = replace(found.value, addresses=("n3:2",))
    store.write(paths.live_node("n3"), moved, found.version)
    assert memberships.find([OURS], [], {}).message["addresses"] == {"n3": "n3:2"}
    store.cut()
    store.tree.znodes[str(paths.live_node("n3"))].data = b"{}"
    store.heal()
    assert memberships.find([OURS], [], {}).message["addresses"] == {}
