"""Placement of replicas of replicated journals, their primaries, and the assignments of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flumeng.config.replicas import Replicas
from flumeng.control.planner.actions import Assign, Replicate
from flumeng.control.planner.planner import Planner, plan
from flumeng.control.snapshot.snapshot import NodeView, Snapshot
from flumeng.control.zookeeper import Version
from tests.unit.control.planning import at_rest, carried_out, cluster, flow, node, seen_by
from zkschema.records import Journal, Maintenance, NodeStatus

HOLDER = ("replica",)
TWO = Replicas()


def world(zones: str, *journals: Journal, replicas: Replicas | None = TWO, **more: Any) -> Snapshot:
    """Nodes ``n0``, ``n1``, ... in these zones, and journals ``j0``, ``j1``, ... at rest."""
    views = [node(f"n{number}", zone, HOLDER) for number, zone in enumerate(zones)]
    known = {f"j{number}": journal for number, journal in enumerate(journals)}
    versions = {name: Version(3) for name, journal in known.items() if journal.lineage}
    return cluster(
        [replace(flow(), replicas=replicas)],
        views,
        journals=known,
        journal_versions=versions,
        **more,
    )


def journal(*replicas: str, in_sync: str = "", **more: Any) -> Journal:
    """A journal of the first of these nodes, which are in sync, or of those in sync by their
    names."""
    nodes = in_sync.split() or replicas
    return replace(
        Journal(
            flow="f",
            node=replicas[0],
            primary=replicas[0],
            term=1,
            in_sync=tuple(f"{name}/{name}x" for name in nodes),
            replicas=replicas,
            lineage="l",
        ),
        **more,
    )


def changed(snapshot: Snapshot, name: str, **fields: Any) -> Snapshot:
    """The snapshot with these fields of the node's record, ``live`` and ``down``."""
    view = snapshot.nodes[name]
    of_view = {key: fields.pop(key) for key in ("live", "down") if key in fields}
    view = replace(view, record=replace(view.record, **fields), **of_view)
    return replace(snapshot, nodes={**snapshot.nodes, name: view})


def without(snapshot: Snapshot, name: str) -> Snapshot:
    return replace(snapshot, nodes={k: v for k, v in snapshot.nodes.items() if k != name})


def replicas(snapshot: Snapshot, name: str = "j0") -> tuple[str, ...]:
    return snapshot.journals[name].replicas


def written(snapshot: Snapshot) -> list[tuple[str, ...]]:
    return [action.why for action in plan(snapshot) if isinstance(action, Replicate)]


LOST = {"live": False, "down": True}
MISSED = {"live": False}


def test_a_replica_is_in_another_zone_than_the_primary() -> None:
    for zones, expected in (("aab", "n2"), ("aba", "n1"), ("aaaab", "n4")):
        assert replicas(at_rest(world(zones, journal("n0")))) == ("n0", expected)


def test_replicas_are_in_zones_of_their_own() -> None:
    three = world("aabbc", journal("n0"), replicas=Replicas(copies=3))
    held = replace(three, journals={**three.journals, "held": journal("n4")})
    for there in (
        three,
        replace(held, journal_versions={**held.journal_versions, "held": Version(0)}),
    ):
        zones = {there.nodes[name].record.zone for name in replicas(at_rest(there))}
        assert zones == {"a", "b", "c"}
    two = world("aabb", journal("n0"), journal("n2", "n3", "n0"), replicas=Replicas(copies=3))
    assert sorted(replicas(at_rest(two))) == ["n0", "n2", "n3"]


def test_where_there_is_one_zone_a_replica_is_on_another_host() -> None:
    assert replicas(at_rest(world("aa", journal("n0")))) == ("n0", "n1")


def test_with_spread_host_zones_do_not_matter() -> None:
    held = [journal("n2", "n3")] * 3
    there = world("aab" + "b", journal("n0"), *held, replicas=Replicas(spread="host"))
    assert replicas(at_rest(there)) == ("n0", "n1")


def test_there_are_no_more_replicas_than_nodes_that_may_hold_one() -> None:
    there = world("aaa", journal("n0"), replicas=Replicas(copies=5))
    assert sorted(replicas(at_rest(there))) == ["n0", "n1", "n2"]
    for fields in ({"roles": ("ingest", "collect")}, {"desired": "draining"}, MISSED):
        assert replicas(at_rest(changed(world("ab", journal("n0")), "n1", **fields))) == ("n0",)


def test_nodes_hold_equally_many_replicas() -> None:
    there = at_rest(world("abb" + "b", *[journal("n0")] * 30))
    held = Counter(name for one in there.journals.values() for name in one.replicas[1:])
    assert held == {"n1": 10, "n2": 10, "n3": 10}


def test_existing_replicas_stay() -> None:
    there = world("aaabb", journal("n0", "n1"), replicas=Replicas(min_in_sync=1))
    assert written(there) == []
    assert written(changed(there, "n1", **MISSED)) == []


def test_surplus_replica_stays() -> None:
    assert written(world("aabb", journal("n0", "n1", "n2"))) == []


def test_a_replica_whose_node_is_lost_is_replaced_when_there_is_another() -> None:
    for lost in (
        changed(world("abb", journal("n0", "n1")), "n1", **LOST),
        without(world("abb", journal("n0", "n1")), "n1"),
    ):
        assert replicas(at_rest(lost)) == ("n0", "n2")
    alone = changed(world("ab", journal("n0", "n1")), "n1", **LOST)
    assert written(alone) == []


def test_blocked_journal_gets_another_replica_before_the_grace_period_ends() -> None:
    """And with it the missed one leaves, also when its node is back before the other is in sync."""
    held = changed(world("abb", journal("n0", "n1")), "n1", **MISSED)
    both = at_rest(held)
    after = both.journals["j0"]
    assert (after.replicas, after.leaving) == (("n0", "n1", "n2"), ("n1",))
    assert written(changed(both, "n1", live=True)) == []
    joined = replace(after, in_sync=("n0/n0x", "n1/n1x", "n2/n2x"))
    for live in (False, True):
        there = changed(replace(both, journals={"j0": joined}), "n1", live=live)
        done = at_rest(there).journals["j0"]
        assert (done.replicas, done.leaving) == (("n0", "n2"), ())


def test_missed_replica_stays_while_there_is_no_other_node_or_events_are_taken() -> None:
    alone = changed(world("ab", journal("n0", "n1")), "n1", **MISSED)
    assert written(alone) == []
    three = world("abcd", journal("n0", "n1", "n2"), replicas=Replicas(copies=3, min_in_sync=2))
    assert written(changed(three, "n1", **MISSED)) == []


def test_replicas_in_sync_are_left_alone() -> None:
    lost = changed(world("abb", journal("n0", "n1")), "n1", **LOST)
    assert at_rest(lost).journals["j0"].in_sync == ("n0/n0x", "n1/n1x")


def test_a_replica_of_a_drained_node_leaves_when_another_is_in_sync() -> None:
    drained = changed(world("abb", journal("n0", "n1")), "n1", desired="draining")
    both = at_rest(drained)
    assert replicas(both) == ("n0", "n1", "n2")
    joined = replace(both.journals["j0"], in_sync=("n0/a", "n1/a", "n2/a"))
    assert replicas(at_rest(replace(both, journals={"j0": joined}))) == ("n0", "n2")


def test_a_replica_of_a_drained_node_stays_while_there_is_no_other() -> None:
    drained = changed(world("ab", journal("n0", "n1")), "n1", desired="draining")
    assert written(drained) == []


def test_a_replica_that_is_moved_leaves_when_the_other_is_in_sync() -> None:
    moving = world("abb", journal("n0", "n1", "n2", in_sync="n0 n1", leaving=("n1",)))
    assert written(moving) == []
    done = world("abb", journal("n0", "n1", "n2", leaving=("n1",)))
    after = at_rest(done).journals["j0"]
    assert (after.replicas, after.leaving) == (("n0", "n2"), ())


def test_closed_journal_gets_no_replicas_and_a_gone_one_is_left_alone() -> None:
    assert written(world("ab", journal("n0", closed=True, end=5))) == []
    gone = journal("n0", "n1", gone=True)
    assert written(changed(world("ab", gone), "n0", **LOST)) == []


@pytest.mark.parametrize("closed", [False, True])
def test_a_replica_in_sync_leads_when_the_primary_is_lost(closed: bool) -> None:
    lost = changed(world("abc", journal("n0", "n1", closed=closed)), "n0", **LOST)
    after = at_rest(lost).journals["j0"]
    assert (after.primary, after.term, after.in_sync) == ("n1", 2, ("n1/n1x",))
    assert after.lineage == "l"
    assert "n1 leads, since n0 is lost" in written(lost)[0][0]


def test_a_replica_in_sync_leads_when_the_primary_was_removed() -> None:
    assert at_rest(without(world("ab", journal("n0", "n1")), "n0")).journals["j0"].primary == "n1"


def test_no_replica_is_promoted_before_the_grace_period_is_over() -> None:
    assert written(changed(world("ab", journal("n0", "n1")), "n0", **MISSED)) == []


def test_no_replica_is_promoted_that_is_not_in_sync_or_not_live() -> None:
    behind = changed(world("ab", journal("n0", "n1", in_sync="n0")), "n0", **LOST)
    assert written(behind) == []
    both = changed(world("ab", journal("n0", "n1")), "n0", **LOST)
    assert written(changed(both, "n1", **MISSED)) == []


def test_node_that_is_not_drained_is_promoted_first() -> None:
    for drained, leads in (("n1", "n2"), ("n2", "n1")):
        there = changed(world("abc", journal("n0", "n1", "n2")), drained, desired="draining")
        assert at_rest(changed(there, "n0", **LOST)).journals["j0"].primary == leads


def test_journal_of_a_flow_without_replication_keeps_a_primary_and_no_more() -> None:
    there = world("abb", journal("n0", "n1"), replicas=None)
    assert written(changed(there, "n1", **LOST)) == []
    assert at_rest(changed(there, "n0", **LOST)).journals["j0"].primary == "n1"


def test_in_maintenance_mode_a_replica_in_sync_leads_and_no_replica_moves() -> None:
    there = changed(world("abb", journal("n0", "n1"), journal("n1")), "n0", **LOST)
    mode = Maintenance(who="o", why="w", since=0.0)
    there = replace(there, cluster=replace(there.cluster, maintenance=mode))
    assert written(there) == [("journal j0: n1 leads, since n0 is lost",)]
    unknown = replace(there, cluster_known=False)
    assert written(unknown) == []


def test_replicas_are_placed_when_maintenance_mode_ends() -> None:
    there = world("ab", journal("n0"))
    mode = Maintenance(who="o", why="w", since=0.0)
    planner = Planner()
    paused = replace(there, cluster=replace(there.cluster, maintenance=mode))
    assert not [one for one in planner.plan(paused) if isinstance(one, Replicate)]
    (found,) = [one for one in planner.plan(there) if isinstance(one, Replicate)]
    assert found.record.replicas == ("n0", "n1")


def test_unreplicated_and_foreign_journals_are_left_alone() -> None:
    plain = Journal(flow="f", node="n0", primary="n0", term=1, in_sync=("n0",))
    assert written(world("ab", plain)) == []
    contradictory = journal("n0", "n1", in_sync="n1")
    assert written(changed(world("abb", contradictory), "n0", **LOST)) == []
    assert written(replace(world("ab", journal("n0")), mine=frozenset())) == []


def told(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    return {name: dict(view.assignment.journals) for name, view in snapshot.nodes.items()}


def test_assignments_have_every_new_record_version_of_their_journals() -> None:
    kinds = [type(action) for action in plan(world("aab", journal("n0"), journal("n1", "n0")))]
    assert kinds.index(Assign) > kinds.index(Replicate), "told of what is not written yet"
    there = at_rest(world("aab", journal("n0"), journal("n1", "n0")))
    assert told(there) == {"n0": {"j0": 4, "j1": 3}, "n1": {"j1": 3}, "n2": {"j0": 4}}
    after = replace(there, journal_versions={**there.journal_versions, "j0": Version(9)})
    assert told(at_rest(after))["n2"] == {"j0": 9}
    gone = replace(
        there, journals={"j1": there.journals["j1"]}, journal_versions={"j1": Version(3)}
    )
    assert told(at_rest(gone)) == {"n0": {"j1": 3}, "n1": {"j1": 3}, "n2": {}}


def test_assignment_keeps_versions_of_unreadable_and_foreign_journals() -> None:
    there = at_rest(world("ab", journal("n0", "n1")))
    unreadable = replace(journal("n0"), lineage="", replicas=())
    for changed_now in (
        replace(there, journals={"j0": unreadable}, journal_versions={}),
        replace(there, journal_versions={"j0": Version(9)}, mine=frozenset()),
    ):
        assert told(carried_out(changed_now)) == {"n0": {"j0": 3}, "n1": {"j0": 3}}


def test_planner_with_memory_decides_as_one_without() -> None:
    planner = Planner()
    there = seen_by(planner, world("abb", journal("n0"), journal("n1", "n0")))
    there = seen_by(planner, changed(there, "n1", **LOST))
    there = seen_by(planner, changed(there, "n2", desired="draining"))
    there = seen_by(planner, without(there, "n0"))
    assert seen_by(planner, there) == there


def test_long_absent_node_is_kept_while_its_replica_is_in_sync() -> None:
    there = at_rest(world("ab", journal("n0", "n1")))
    for in_sync, kept in (("n0 n1", True), ("n0", False)):
        known = replace(there, journals={"j0": journal("n0", "n1", in_sync=in_sync)}, leads=True)
        view: NodeView = replace(known.nodes["n1"], live=False, down=True, expired=True)
        known = replace(known, nodes={**known.nodes, "n1": view})
        assert ("n1" in at_rest(known).nodes) == kept


class Counted(dict[str, Any]):
    """``looks``: the number of entries read."""

    looks = 0

    def __getitem__(self, name: str) -> Any:
        self.looks += 1
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self.looks += len(self)
        return super().__iter__()

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()

    def values(self) -> Any:
        self.looks += len(self)
        return super().values()


def test_idle_round_reads_no_journal() -> None:
    there = at_rest(world("abab", *(journal("n0", "n1") for _ in range(50))))
    planner = Planner()
    assert planner.plan(there) == []
    journals, versions = Counted(there.journals), Counted(there.journal_versions)
    there = replace(there, journals=journals, journal_versions=versions)
    assert planner.plan(there) == []
    journals.looks = versions.looks = 0
    assert planner.plan(there) == []
    assert (journals.looks, versions.looks) == (0, 0)


def test_status_of_a_node_causes_no_look_at_journals() -> None:
    """A node writes its status often; only its standing has an effect on replicas."""
    there = at_rest(world("abab", *(journal("n0", "n1") for _ in range(50))))
    planner = Planner()
    for _ in range(2):
        assert planner.plan(there) == []
    journals, versions = Counted(there.journals), Counted(there.journal_versions)
    there = replace(there, journals=journals, journal_versions=versions)
    assert planner.plan(there) == []
    journals.looks = versions.looks = 0
    view = replace(there.nodes["n3"], status=NodeStatus(assignment_version=7))
    assert planner.plan(replace(there, nodes={**there.nodes, "n3": view})) == []
    assert journals.looks + versions.looks < 50
