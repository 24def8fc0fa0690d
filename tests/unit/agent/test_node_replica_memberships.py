"""Holders of a replicated journal, as the node reads them for its workers and requests changes.

Protects that no replica is removed that may be needed, that a change is made only of the record
that it was meant for, and that a node overwrites no registration of another node that leads.
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
from flumeng.control.zookeeper import ABSENT, ANY, Found, Path, Unreadable, tree
from flumeng.journal.replication.membership import Membership
from flumeng.platform.errors import ConflictError, ForbiddenError
from tests.testkit.clock import Clock
from tests.testkit.cluster import come_live
from tests.testkit.light_nodes import ClaimsInMemory
from tests.testkit.scripted_store import ScriptedStore, fail, removes
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
def memberships(store: FakeStore) -> JournalRegistry:
    return JournalRegistry(FencedStore(store), "n1", itertools.count(0, 60).__next__)  # all is due


@pytest.fixture
def registration(store: FakeStore) -> Registration:
    registration = Registration(store, Identity("n1", "u1", ("ingest",), "", {}), ClaimsInMemory())
    registration.register()
    return registration


def live(store: FakeStore, *nodes: str) -> None:
    for name in nodes:
        come_live(store, name, f"{name}:1", "x")


def journal(**fields: Any) -> records.Journal:
    """A journal of n1, which leads it; the replica of n2 is in sync, that of n3 is not."""
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
    """All of the flow's events are delivered up to this offset."""
    apply_flow(Operator(store, "a", "", 0.0), FLOW)
    ack = paths.ack("web", "main", name)
    store.write(ack, records.Ack(epoch=1, offset=offset), ABSENT)
    return ack


def damage(store: FakeStore, name: str) -> None:
    store.tree.znodes[str(paths.journal(name))].data = b"{"


def unwanted(memberships: JournalRegistry, *replicas: str) -> list[str]:
    found = memberships.find([], replicas, dict.fromkeys(replicas, "n1/x"))
    return list(found.message["unwanted"])


# Journals that are found.


def test_workers_get_the_replica_holders_and_their_addresses(
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
    """Only nodes with a replica may read a record."""

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        return [
            Unreadable(path, "hidden", hidden=True) if path.row is table.journal else one
            for path, one in zip(wanted, super().read_each(wanted), strict=True)
        ]


def test_replica_with_a_long_hidden_and_unassigned_record_is_unwanted(store: FakeStore) -> None:
    """In a secured cluster a node that holds none any more may not read the record."""
    put(store, OURS, replicas=("n2", "n3"))
    clock = Clock(0.0)
    memberships = JournalRegistry(FencedStore(Hiding(store.tree)), "n1", clock)

    def unwanted(at: float, **assigned: int) -> list[str]:
        clock.now = at
        return list(memberships.find([], [OURS], {OURS: "n1/x"}, assigned).message["unwanted"])

    assert unwanted(0.0) == []
    assert unwanted(ABANDONED_SECONDS - 1, **{OURS: 3}) == []
    assert unwanted(ABANDONED_SECONDS) == [], "it was spoken of"
    assert unwanted(2 * ABANDONED_SECONDS) == [OURS]


def test_message_of_a_membership_is_complete() -> None:
    one = Membership.of(journal())
    assert Membership.from_message(one.as_message()) == one


def test_record_without_its_primary_in_sync_is_left_out(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    put(store, OURS, in_sync=("n2/b",))
    found = memberships.find([OURS], [], {})
    assert (found.message["journals"], found.lost) == ({}, {})


def test_replica_that_does_not_belong_here_any_more_is_unwanted(
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


def test_end_by_another_node_is_sent_to_the_maker_and_forgotten_once_gone(
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


def test_journals_of_other_nodes_that_this_node_leads_are_found(
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
def test_journal_led_with_a_replica_that_is_missing_here_is_lost(
    store: FakeStore, memberships: JournalRegistry, ids: dict[str, str], lost: list[str]
) -> None:
    put(store, OURS)
    put(store, THEIRS, node="n2", primary="n2")
    assert list(memberships.find([OURS, THEIRS], [], ids).lost) == lost


def test_collected_journal_that_is_marked_gone_is_not_handed_over(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    """Its record is for the node that made it alone, which would lead it again, and have all of it
    collected once more."""
    put(store, THEIRS, node="n2", primary="n1", in_sync=("n1/a", "n2/b"), closed=True, end=5)
    assert list(memberships.find([THEIRS], [], {}).lost) == [THEIRS]
    put(store, THEIRS, node="n2", primary="n1", in_sync=("n1/a", "n2/b"), closed=True, gone=True)
    assert memberships.find([THEIRS], [], {}).lost == {}


# Changed memberships.


def proposal(store: FakeStore, changed: Membership) -> dict[str, Any]:
    found = store.read(paths.journal(OURS))
    assert found is not None
    return {
        "type": "proposal",
        "journal": OURS,
        "version": found.version.number,
        **changed.as_message(),
    }


def test_change_keeps_the_fields_that_are_not_the_workers(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    before = put(store, OURS, closed=True, end=7, leaving=("n2",))
    joined = Membership.of(before).joined("n3/c")
    memberships.change(proposal(store, joined))
    assert read(store) == replace(before, in_sync=("n1/a", "n2/b", "n3/c"))


def test_change_of_another_record_than_the_known_one_is_refused(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    asked = proposal(store, Membership.of(put(store, OURS)).without("n2/b"))
    after = put(store, OURS, term=5)
    with pytest.raises(ConflictError, match="changed meanwhile"):
        memberships.change(asked)
    assert read(store) == after
    asked["version"] = 1
    damage(store, OURS)
    with pytest.raises(ConflictError, match="unreadable record"):
        memberships.change(asked)
    store.remove(paths.journal(OURS), ANY)
    with pytest.raises(ConflictError, match=f"{OURS} is gone"):
        memberships.change(asked)
    assert not store.exists(paths.journal(OURS))


# A replica here that is lost.


def hand_over(memberships: JournalRegistry, own: str = "") -> None:
    found = memberships.find([OURS], [], {})
    memberships.hand_over(OURS, found.lost[OURS], own)


def test_live_replica_in_sync_leads_when_ours_is_lost(
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


def test_replica_is_handed_over_only_under_the_record_that_was_read(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    put(store, OURS)
    live(store, "n2")
    found = memberships.find([OURS], [], {})
    after = put(store, OURS, term=9)
    with pytest.raises(ConflictError):
        memberships.hand_over(OURS, found.lost[OURS], "")
    assert read(store) == after


def test_node_chosen_by_an_operator_leads_with_its_own_replica(
    store: FakeStore, memberships: JournalRegistry
) -> None:
    """The operator does not know the replica's id."""
    chosen = put(store, OURS, in_sync=("n1/",), term=5, lineage="m")
    hand_over(memberships, "n1/own")
    assert read(store) == replace(chosen, in_sync=("n1/own",))
    put(store, OURS, in_sync=("n1/",), term=5, lineage="m")
    hand_over(memberships)
    assert list(memberships.leaderless) == [str(paths.journal(OURS))], "it has none"


# Registered replicas.


def local(**fields: Any) -> dict[str, dict[str, Any]]:
    said = {"flow": "web", "term": 4, "closed": False, "end": None}
    return {OURS: {**said, "replica": "n1/a", "lineage": "l", "leads": True, **fields}}


def test_new_journal_is_registered_with_its_one_replica_in_its_own_term(
    store: FakeStore, registration: Registration
) -> None:
    registration.journals.enter(local(leads=False))
    expected = journal(term=5, in_sync=("n1/a",), replicas=("n1",))
    assert read(store) == expected
    registration.journals.enter(local(leads=False))
    assert read(store) == expected


def test_journal_closed_before_its_registration_is_not_registered(
    store: FakeStore, registration: Registration
) -> None:
    """It cannot have taken anything: it takes events once it leads."""
    registration.journals.enter(local(closed=True, end=0))
    assert not store.exists(paths.journal(OURS))


def test_fields_written_by_masters_and_workers_are_not_overwritten(
    store: FakeStore, registration: Registration
) -> None:
    before = put(store, OURS, term=9, leaving=("n2",))
    registration.journals.enter(local())
    assert read(store) == before
    registration.journals.enter(local(closed=True, end=7))
    assert read(store) == replace(before, closed=True, end=7)


def test_only_the_primary_registers_that_a_journal_is_closed(
    store: FakeStore, registration: Registration
) -> None:
    before = put(store, OURS)
    registration.journals.enter(local(leads=False, closed=True, end=7))
    assert read(store) == before


def test_closed_journal_is_not_opened_again(store: FakeStore, registration: Registration) -> None:
    """Its primary has only just started, and does not know yet that all replicas end there."""
    before = put(store, OURS, closed=True, end=7)
    registration.journals.enter(local())
    assert read(store) == before


@pytest.mark.parametrize("leads", [False, True])
def test_journal_led_by_another_node_is_left_alone(
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


def test_journal_returned_to_this_node_is_registered_again(
    store: FakeStore, registration: Registration
) -> None:
    put(store, OURS, primary="n2", in_sync=("n2/b",))
    registration.journals.enter(local(leads=False))
    back = put(store, OURS)
    registration.journals.enter(local(closed=True, end=3))
    assert read(store) == replace(back, closed=True, end=3)


def test_journal_led_for_another_node_is_followed_and_marked_gone(
    store: FakeStore, registration: Registration
) -> None:
    """The node that made it may still hold events that no other has."""
    ack = acked(store, THEIRS, 5)
    before = put(store, THEIRS, node="n2", primary="n1", in_sync=("n1/x",), closed=True, end=5)
    registration.journals.led = [THEIRS]
    assert list(registration.journals.registered) == [THEIRS]
    assert registration.journals.acks().unneeded == (THEIRS,)
    registration.journals.deregister([THEIRS])
    assert read(store, THEIRS) == replace(before, gone=True)
    assert store.exists(ack)
    registration.reread()
    assert list(registration.journals.registered) == []


def test_journal_ended_by_another_node_is_removed_with_its_ack(
    store: FakeStore, memberships: JournalRegistry, registration: Registration
) -> None:
    put(store, OURS, primary="n2", in_sync=("n2/b",), closed=True, end=5, gone=True)
    ack = acked(store, OURS, 5)
    registration.journals.forget(memberships.find([OURS], [], {}).forgotten)
    assert not store.exists(paths.journal(OURS))
    assert not store.exists(ack)


def registrations(store: FakeStore) -> list[str]:
    """The registrations after a run of the masters' tidying."""
    snapshot = Reader(store, "m", lambda: 0.0, lambda: 0.0).snapshot()
    list(remove_gone(store, snapshot))
    return store.children(paths.journals())


def test_masters_of_a_secured_cluster_remove_a_journal_forgotten_by_its_maker(
    store: FakeStore,
) -> None:
    refusing = fail(ForbiddenError("nodes remove nothing"), when=removes)
    secured = ScriptedStore(store.tree, before_commit=refusing)
    node = Registration(secured, Identity("n1", "u1", ("ingest",), "", {}), ClaimsInMemory())
    node.register()
    acked(store, OURS, 5)
    put(store, OURS, primary="n2", in_sync=("n2/b",), closed=True, end=5, gone=True)
    assert registrations(store) == [OURS]
    node.journals.forget(JournalRegistry(FencedStore(secured), "n1").find([OURS], [], {}).forgotten)
    assert registrations(store) == []


# Records that masters remove.


@pytest.fixture
def gone(store: FakeStore, registration: Registration) -> FakeStore:
    """A journal of n1 that another node has ended, and that is removed there."""
    del registration  # n1 is registered
    acked(store, OURS, 5)
    put(store, OURS, primary="n2", in_sync=("n2/b",), closed=True, end=5, gone=True)
    return store


def test_gone_journal_stays_while_its_maker_may_come_back(gone: FakeStore) -> None:
    assert registrations(gone) == [OURS]


def test_gone_journal_is_removed_when_its_maker_has_left(gone: FakeStore) -> None:
    gone.remove(paths.node("n1"), ANY)
    assert registrations(gone) == []


def test_gone_journal_is_removed_when_its_flow_is_deleted(gone: FakeStore) -> None:
    flow = gone.read(paths.flow("web"))
    assert flow is not None
    gone.write(paths.flow("web"), replace(flow.value, state="deleted"), flow.version)
    assert registrations(gone) == []


@pytest.mark.parametrize("fields", [{"primary": "n1", "in_sync": ("n1/a",)}, {"lineage": ""}])
def test_gone_journal_that_no_node_awaits_is_removed(
    gone: FakeStore, fields: dict[str, Any]
) -> None:
    put(gone, OURS, **{"primary": "n2", "in_sync": ("n2/b",), **fields}, closed=True, gone=True)
    assert registrations(gone) == []


def test_idle_look_reads_no_live_znode() -> None:
    store = ScriptedStore()
    tree.init(store)
    live(store, "n2", "n3")
    put(store, OURS)
    memberships = JournalRegistry(FencedStore(store), "n1", lambda: 0.0)
    expected = {"n2": "n2:1", "n3": "n3:1"}
    assert memberships.find([OURS], [], {}).message["addresses"] == expected
    store.reads.clear()
    for _ in range(60):
        assert memberships.find([OURS], [], {}).message["addresses"] == expected
    assert not any(path.row is paths.live_node for wanted in store.reads for path in wanted)


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
