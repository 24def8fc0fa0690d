"""Replicas and primary of a replicated journal, by command: on a fake store."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import tree as cli_tree
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.journal.log import directory as directories
from flumeng.journal.log.replica import Replica
from flumeng.journal.log.replica_journal import ReplicaJournal
from tests.testkit.cluster import add_node, new_cluster
from tests.testkit.command_line import Reached, Shell
from tests.testkit.journal import numbered_events
from tests.testkit.store import FakeStore
from zkschema import paths, records

FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:5514"}}]
durability: replicated
sinks: [noop]
"""
SIGN = ("ann", "", 0.0)
J = "web.n1.0.00000000"
ROLES = {"n5": ("ingest", "collect")}


@pytest.fixture
def store() -> FakeStore:
    """n1 leads a journal, n2 is in sync, n3 is catching up; n4 is free, n5 may hold no replicas."""
    store = new_cluster()
    for name in ("n1", "n2", "n3", "n4", "n5"):
        add_node(store, name, ROLES.get(name, ("ingest", "replica")))
    apply_flow(Operator(store, *SIGN), FLOW)
    register(store)
    return store


def register(store: FakeStore, **fields: Any) -> None:
    journal = records.Journal(
        flow="web",
        node="n1",
        primary="n1",
        term=4,
        in_sync=("n1/a", "n2/b"),
        replicas=("n1", "n2", "n3"),
        lineage="l",
    )
    path = paths.journal(J)
    store.write(path, replace(journal, **fields), ANY if store.exists(path) else ABSENT)


def die(store: FakeStore, *nodes: str) -> None:
    for name in nodes:
        store.remove(paths.live_node(name), ANY)


def serve(shell: Shell, store: FakeStore, **ends: int) -> None:
    """Let nodes report the ends of their replicas."""
    for name, end in ends.items():
        path = paths.live_node(name)
        found = store.read(path)
        assert found is not None
        store.write(path, replace(found.value, addresses=(f"{name}:1",)), ANY)
        shell.held[f"{name}:1"] = {J: end}


def journal(store: FakeStore) -> records.Journal:
    found = store.read(paths.journal(J))
    assert found is not None
    return found.value


def commands(store: FakeStore) -> list[tuple[str, str]]:
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    return [(entry.value.command, entry.value.reason) for entry in entries if entry][1:]


def refused(shell: Shell, store: FakeStore, *words: str) -> str:
    """The error message of a command that failed and changed nothing."""
    before = store.dump()
    done = shell.run("journal", *words)
    assert done.exit_code != 0
    assert store.dump() == before
    return done.stderr


def test_list_shows_the_replicas_of_each_journal(shell: Shell, store: FakeStore) -> None:
    line = shell.run("journal", "list").stdout.splitlines()
    assert line[0].split("\t")[8:] == ["TERM", "REPLICAS", "IN SYNC", "LAG", "STATE"]
    assert line[1].split("\t")[1] == "n1"
    assert line[1].split("\t")[8:] == ["4", "n1,n2,n3", "n1,n2", "-", "open"]
    (row,) = shell.json("journal", "list")
    assert (row["replicas"], row["in_sync"]) == (["n1", "n2", "n3"], ["n1", "n2"])
    register(store, lineage="", replicas=(), in_sync=("n1",))
    assert "REPLICAS" not in shell.run("journal", "list").stdout


def test_list_shows_the_lag_of_each_replica(shell: Shell, store: FakeStore) -> None:
    live = store.read(paths.live_node("n1"))
    assert live is not None
    store.write(paths.live_node("n1"), replace(live.value, addresses=("n1:1",)), ANY)
    shell.positions["n1:1"] = {J: Reached(floor=0, safe=50)}
    shell.lags[J] = {"n2": 0, "n3": 12_345}
    line = shell.run("journal", "list").stdout.splitlines()[1]
    assert line.split("\t")[11] == "n2 0, n3 12345"
    (row,) = shell.json("journal", "list")
    assert row["lags"] == {"n2": 0, "n3": 12_345}


def test_a_replica_in_sync_is_promoted(shell: Shell, store: FakeStore) -> None:
    done = shell.run("journal", "promote", J, "--reason", "old disk")
    assert done.stdout.startswith(f"node n2 is the primary of {J} in term 5")
    after = journal(store)
    assert (after.primary, after.term, after.in_sync) == ("n2", 5, ("n2/b",))
    assert (after.lineage, after.replicas) == ("l", ("n1", "n2", "n3"))
    assert commands(store) == [(f"journal promote {J} --to n2", "old disk")]
    assert "is the primary of" in shell.run("journal", "promote", J, "--to", "n2").stdout
    assert len(commands(store)) == 1


def test_impossible_promotion_is_refused(shell: Shell, store: FakeStore) -> None:
    assert "there is no journal" in refused(shell, store, "promote", "web.n1.0.1")
    behind = refused(shell, store, "promote", J, "--to", "n3")
    assert "node n3 is not in sync (n1, n2 are in sync)" in behind
    assert "--unclean" in behind
    add_node(store, "n9")
    never = refused(shell, store, "promote", J, "--to", "n9")
    assert "node n9 holds no replica" in never and "--unclean" not in never
    die(store, "n2")
    assert "node n2 is not live" in refused(shell, store, "promote", J, "--to", "n2")
    assert "no other replica" in refused(shell, store, "promote", J)
    register(store, gone=True)
    assert "has ended" in refused(shell, store, "promote", J)
    register(store, lineage="", replicas=(), in_sync=("n1",))
    assert "has no replicas" in refused(shell, store, "promote", J)


def test_unclean_promotion_needs_that_no_replica_in_sync_is_left(
    shell: Shell, store: FakeStore
) -> None:
    unclean = ("promote", J, "--to", "n3", "--unclean")
    assert "the replica of n1 is in sync and live" in refused(shell, store, *unclean)
    die(store, "n1", "n2")
    asked = refused(shell, store, *unclean)
    assert "Only n1, n2 had every accepted event" in asked
    assert "The replica of n3 may lack any number of events" in asked
    serve(shell, store, n3=70)
    assert "The replica of n3 reaches up to seq 70" in refused(shell, store, *unclean)
    assert "--unclean needs --to NODE" in refused(shell, store, "promote", J, "--unclean")
    assert "holds no replica" in refused(shell, store, "promote", J, "--unclean", "--to", "n4")
    assert shell.run("journal", *unclean, "--yes").exit_code == 0
    after = journal(store)
    assert (after.primary, after.term, after.in_sync) == ("n3", 5, ("n3/",))
    assert after.lineage not in ("", "l")
    ((command, _),) = commands(store)
    assert command == f"{' '.join(('journal', *unclean))}: gave up events of n1, n2"


def test_events_are_given_up_where_the_only_live_replica_reports_damage(
    shell: Shell, store: FakeStore
) -> None:
    unclean = ("promote", J, "--to", "n3", "--unclean", "--yes")
    die(store, "n2")
    other = str(paths.journal("other.n1.0.00000000"))
    told = records.NodeStatus(assignment_version=1, problems={other: "damaged"})
    store.write(paths.status("n1"), told, ABSENT)
    assert "the replica of n1 is in sync and live" in refused(shell, store, *unclean)
    store.write(paths.status("n1"), replace(told, problems={str(paths.journal(J)): "lost"}), ANY)
    assert shell.run("journal", *unclean).exit_code == 0
    assert journal(store).primary == "n3"


def test_replica_without_a_record_leads_with_the_operators_word(
    shell: Shell, store: FakeStore
) -> None:
    """The one that reaches furthest."""
    store.remove(paths.journal(J), ANY)
    serve(shell, store, n2=70, n3=80)
    assert "there is no journal" in refused(shell, store, "promote", J, "--to", "n2")
    unclean = ("promote", J, "--unclean", "--to")
    assert "expected one of n2, n3" in refused(shell, store, *unclean, "n4", "--yes")
    assert "the replica of n3 reaches up to seq 80" in refused(
        shell, store, *unclean, "n2", "--yes"
    )
    assert "seq 80; all its events are delivered" in refused(shell, store, *unclean, "n3")
    other = ("promote", "app.n1.0.00000000", "--unclean", "--to", "n3", "--yes")
    missing = "flow app, which collects app.n1.0.00000000, does not exist"
    assert missing in refused(shell, store, *other)
    assert shell.run("journal", *unclean, "n3", "--yes").exit_code == 0
    after = journal(store)
    assert (after.node, after.primary, after.in_sync) == ("n1", "n3", ("n3/",))
    assert (after.replicas, after.closed, after.lineage != "") == (("n3",), False, True)
    ((command, _),) = commands(store)
    assert command == f"journal promote {J} --to n3 --unclean: its record was lost"


def test_a_replica_is_moved(shell: Shell, store: FakeStore) -> None:
    assert shell.run("journal", "move", J, "--from", "n2", "--to", "n4").exit_code == 0
    after = journal(store)
    assert (after.replicas, after.leaving) == (("n1", "n2", "n3", "n4"), ("n2",))
    assert after.in_sync == ("n1/a", "n2/b")
    assert commands(store) == [(f"journal move {J} --from n2 --to n4", "")]


def test_masters_finish_a_move_and_keep_the_chosen_replicas(shell: Shell, store: FakeStore) -> None:
    shell.run("journal", "add-replica", J, "n4")
    master = Master(store, "m", lambda: 0.0, lambda: 0.0)
    master.tick()
    assert journal(store).replicas == ("n1", "n2", "n3", "n4")
    register(store, replicas=("n1", "n2"))
    shell.run("journal", "move", J, "--from", "n2", "--to", "n4")
    master.tick()
    assert journal(store).replicas == ("n1", "n2", "n4")
    moving = journal(store)
    store.write(paths.journal(J), replace(moving, in_sync=(*moving.in_sync, "n4/d")), ANY)
    master.tick()
    assert (journal(store).replicas, journal(store).leaving) == (("n1", "n4"), ())
    found = store.read(paths.journal(J))
    told = store.read(paths.assignment("n4"))
    assert found is not None
    assert told is not None
    assert told.value.journals == {J: found.version.number}


def test_target_nodes_of_replicas_are_checked(shell: Shell, store: FakeStore) -> None:
    for words in (("add-replica", J), ("move", J, "--from", "n2", "--to")):
        assert "lacks role replica" in refused(shell, store, *words, "n5")
        assert "there is no node" in refused(shell, store, *words, "n9")
    assert "is the primary of" in refused(shell, store, "move", J, "--from", "n1", "--to", "n4")
    assert "drop-replica" in refused(shell, store, "move", J, "--from", "n2", "--to", "n3")
    assert "already" in shell.run("journal", "add-replica", J, "n2").stdout
    die(store, "n4")
    assert "node n4 is not live" in refused(shell, store, "add-replica", J, "n4")
    register(store, closed=True, end=7)
    assert "is closed" in refused(shell, store, "add-replica", J, "n2")


def test_a_replica_is_dropped(shell: Shell, store: FakeStore) -> None:
    assert "is the primary of" in refused(shell, store, "drop-replica", J, "n1")
    assert "expected one of n2, n3" in refused(shell, store, "drop-replica", J, "n4")
    assert shell.run("journal", "drop-replica", J, "n3").exit_code == 0
    asked = refused(shell, store, "drop-replica", J, "n2")
    assert "in sync on 1 of the 2 nodes" in asked
    assert shell.run("journal", "drop-replica", J, "n2", "--yes").exit_code == 0
    assert (journal(store).replicas, journal(store).in_sync) == (("n1",), ("n1/a",))
    assert sorted(command for command, _ in commands(store)) == [
        f"journal drop-replica {J} n2",
        f"journal drop-replica {J} n3",
    ]


def wrong(shell: Shell) -> list[str]:
    return [cause["what"] for cause in shell.json("status")["causes"] if J in cause["what"]]


def test_status_shows_how_few_replicas_are_in_sync_and_why(shell: Shell, store: FakeStore) -> None:
    told = "flow web: 1 journal {}: " + J + " ({})"
    assert wrong(shell) == []
    register(store, in_sync=("n1/a",))
    below = "below the minimum in sync, and take no events"
    assert wrong(shell) == [told.format(below, "in sync: n1; n2 is catching up, n3 is catching up")]
    die(store, "n2", "n3")
    register(store)
    assert wrong(shell) == [told.format(below, "in sync: n1; n2 is not live, n3 is not live")]
    apply_flow(Operator(store, *SIGN), FLOW + "replicas: {copies: 3, min_in_sync: 1}\n")
    register(store, replicas=("n1", "n2"))
    why = "in sync: n1; n2 is not live, no other node may hold a replica"
    assert wrong(shell) == [told.format("at the minimum in sync", why)]
    register(store, in_sync=("n1/a", "n4/d"), replicas=("n1", "n4", "n3"))
    assert wrong(shell) == [told.format("under-replicated", "in sync: n1, n4; n3 is not live")]


def test_status_lists_journals_that_no_live_node_has(shell: Shell, store: FakeStore) -> None:
    die(store, "n1", "n2")
    (what,) = wrong(shell)
    assert what.endswith(f"unavailable: no replica in sync is live: {J} (n1, n2 not live)")
    register(store, closed=True, end=7)
    assert len(wrong(shell)) == 1
    store.write(paths.ack("web", "main", J), records.Ack(epoch=1, offset=7), ABSENT)
    assert wrong(shell) == []


def test_node_is_not_drained_while_it_holds_replicas(shell: Shell, store: FakeStore) -> None:
    waits = shell.run("node", "drain", "n2", "--wait", "--timeout", 0)
    assert f"no other node has a replica of {J} instead yet" in waits.stderr
    die(store, "n2")
    gone = shell.run("node", "decommission", "n2")
    assert "1 replica of a journal" in gone.stderr


def test_journal_with_another_live_replica_survives_the_discard_of_its_node(
    shell: Shell, store: FakeStore
) -> None:
    die(store, "n1", "n2")
    assert shell.run("node", "decommission", "n1", "--discard", "--yes").exit_code == 0
    assert store.exists(paths.journal(J))
    assert shell.run("node", "decommission", "n2", "--discard", "--yes").exit_code == 0
    assert not store.exists(paths.journal(J))


# A replica that is damaged on its disk.


def damaged_replica(folder: Path, own: str) -> Path:
    """A replica of twenty events with a flipped bit in the last frame."""
    made = ReplicaJournal.make(folder, J, Replica(own, "l"), term=4)
    for start in (0, 10):
        made.append(numbered_events(start, 10))
    made.sync()
    made.advance(20)
    made.close()
    (segment,) = (folder / J).glob("*.segment")
    raw = bytearray(segment.read_bytes())
    raw[-10] ^= 1
    segment.write_bytes(raw)
    return folder / J


def test_a_damaged_replica_is_set_aside_when_others_have_its_events(
    shell: Shell, store: FakeStore, tmp_path: Path
) -> None:
    before = journal(store)
    directory = damaged_replica(tmp_path / "copies", "n2/b")
    done = shell.run("journal", "repair", str(directory))
    assert done.exit_code == 0
    aside = tmp_path / "copies" / f".{J}.damaged"
    assert done.stdout.splitlines() == [
        f"nothing is lost: n1 have all accepted events of {J}",
        f"kept as it was: {aside}; another replica is made when needed",
    ]
    assert (aside.exists(), directory.exists()) == (True, False)
    assert journal(store) == before


def test_repair_of_a_damaged_primary_hands_over_to_another_replica(
    shell: Shell, store: FakeStore, tmp_path: Path
) -> None:
    directory = damaged_replica(tmp_path / "journals" / "0", "n1/a")
    done = shell.run("journal", "repair", str(directory))
    assert "node n2 is its primary now" in done.stdout
    assert "its node discards it at its start" in done.stdout
    assert (journal(store).primary, journal(store).in_sync) == ("n2", ("n2/b",))
    assert directory.exists(), "it knows where its sources go on"


def test_repair_of_the_only_replica_keeps_all_intact_events(
    shell: Shell, store: FakeStore, tmp_path: Path
) -> None:
    register(store, in_sync=("n1/a",))
    directory = damaged_replica(tmp_path / "journals" / "0", "n1/a")
    done = shell.run("journal", "repair", str(directory))
    assert done.exit_code == 0
    assert "there is no other copy of its events" in done.stderr
    assert "lost: events 10 to 20" in done.stdout
    opened = ReplicaJournal.load(directory)
    assert (opened.safe, opened.readable, opened.closed) == (20, 10, True)
    opened.close()


def test_repair_of_a_damaged_primary_is_refused_while_its_other_replicas_are_down(
    shell: Shell, store: FakeStore, tmp_path: Path
) -> None:
    directory = damaged_replica(tmp_path / "journals" / "0", "n1/a")
    die(store, "n2")
    done = shell.run("journal", "repair", str(directory))
    assert done.exit_code != 0
    assert "none of their nodes is live (n2): start one of them first" in done.stderr
    assert directory.exists()
    assert journal(store).primary == "n1"


def test_repair_of_a_replica_needs_its_cluster_first(tmp_path: Path) -> None:
    directory = damaged_replica(tmp_path / "copies", "n2/b")
    done = CliRunner().invoke(cli_tree, ["journal", "repair", str(directory)])
    assert done.exit_code == 2
    assert "name its cluster with --zk" in done.stderr
    opened = directories.lock(directory)
    os.close(opened)
    assert not (directory / "quarantine").exists()
