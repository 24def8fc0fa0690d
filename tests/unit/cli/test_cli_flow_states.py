"""``flow pause``, ``resume`` and ``stop`` for many flows, and the remains of a deleted one."""

from __future__ import annotations

import pytest

from flumeng.control.commands import tombstones
from flumeng.control.commands.flows import apply_flows, delete_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper import ABSENT, ANY
from tests.testkit.cluster import add_node
from tests.testkit.command_line import Shell
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import NodeStatus, Plan, PlannedTask, TaskStatus

TEXT = (
    "flow: {}\nlabels: {{team: {}, tier: gold}}\nsources: [tail: {{paths: [/a]}}]\nsinks: [noop]\n"
)


def apply(store: FakeStore, team: str, *flows: str) -> None:
    texts = {flow: TEXT.format(flow, team) for flow in flows}
    list(apply_flows(Operator(store, "ann", "first", 0.0), texts))


def states(store: FakeStore) -> dict[str, str]:
    names = store.children(paths.flows())
    found = store.read_each([paths.flow(name) for name in names])
    return {
        name: one.value.state  # type: ignore[union-attr]
        for name, one in zip(names, found, strict=True)
        if hasattr(one, "value")
    }


def test_several_flows_can_be_named(shell: Shell, store: FakeStore) -> None:
    apply(store, "a", "one", "two", "three")
    done = shell.run("flow", "pause", "one", "three", "one")
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [
            "flow one: collecting stops now, its sources still write to the journals",
            "flow three: collecting stops now, its sources still write to the journals",
            "2 flows changed, 0 failed, 2 in all",
        ],
    )
    assert states(store) == {"one": "suspended", "three": "suspended", "two": "running"}


def test_pause_and_stop_name_the_place_where_events_wait(shell: Shell, store: FakeStore) -> None:
    kafka = "kafka: {brokers: ['b:9092'], topics: [orders]}"
    texts = {
        name: f"flow: {name}\nsources: [{sources}]\nsinks: [noop]\n"
        for name, sources in (
            ("disk", "tail: {paths: [/a]}"),
            ("topic", kafka),
            ("both", "{tail: {paths: [/a]}}, {" + kafka + "}"),
            ("far", "flow: {site: fra, name: web}"),
        )
    }
    operator = Operator(store, "ann", "", 0.0)
    name_cluster(operator, "nyc")
    add_site(operator, "fra", ["gw1:9003"], "")
    list(apply_flows(operator, texts))
    assert shell.run("flow", "pause", "disk", "topic", "both", "far").stdout.splitlines()[:4] == [
        "flow disk: collecting stops now, its sources still write to the journals",
        "flow topic: collecting stops now, new events wait in the source kafka",
        "flow both: collecting stops now, new events wait in the journals or in the source kafka",
        "flow far: collecting stops now, new events wait in flow web of site fra",
    ]
    assert shell.run("flow", "stop", "disk", "topic", "both").stdout.splitlines()[:3] == [
        "flow disk: its sources stop now, its journals are fully collected",
        "flow topic: collecting stops now, remaining events wait in the source kafka",
        "flow both: its sources stop now, its journals are fully collected, and remaining events "
        "wait in the source kafka",
    ]


def test_stopped_flow_is_stopped_while_its_topics_are_looked_at(
    shell: Shell, store: FakeStore
) -> None:
    """An unreachable broker is no trouble then: nothing waits for it."""
    text = "flow: topic\nsources: [kafka: {brokers: ['b:1'], topics: [t]}]\nsinks: [noop]\n"
    list(apply_flows(Operator(store, "ann", "", 0.0), {"topic": text}))
    tasks = {
        name: PlannedTask(kind=name.partition(".")[0], node="n1", epoch=1, state="assigned")
        for name in ("discover.0", "collect.0")
    }
    add_node(store, "n1", ("collect",))
    failed = TaskStatus(epoch=1, revision=1, state="failed", error="b:1 does not answer")
    said = NodeStatus(assignment_version=0, tasks={f"topic/{name}": failed for name in tasks})
    store.write(paths.status("n1"), said, ANY)
    shell.run("flow", "stop", "topic")
    store.write(paths.plan("topic"), Plan(epoch=1, tasks=tasks), ABSENT)
    waited = shell.run("flow", "wait", "topic", "--stopped", "--timeout", 1)
    named = [name for name in tasks if name in waited.stderr]
    assert (waited.exit_code, named) == (1, ["collect.0"])
    plan = Plan(epoch=1, tasks={"discover.0": tasks["discover.0"]})
    store.write(paths.plan("topic"), plan, ANY)
    assert shell.run("flow", "wait", "topic", "--stopped", "--timeout", 1).exit_code == 0
    assert shell.json("flow", "show", "topic")["health"]["state"] == "stopped"
    told = shell.run("status").stdout
    assert "b:1 does not answer" not in told


def test_labels_choose_flows_that_have_all_of_them(shell: Shell, store: FakeStore) -> None:
    apply(store, "a", "one", "two")
    apply(store, "b", "three")
    assert shell.run("flow", "stop", "--label", "team=a", "--label", "tier=gold").exit_code == 0
    assert states(store) == {"one": "stopped", "two": "stopped", "three": "running"}
    assert shell.json("flow", "resume", "--label", "team=a") == [
        {"flow": "one", "changed": True, "error": ""},
        {"flow": "two", "changed": True, "error": ""},
    ]
    none = shell.run("flow", "stop", "--label", "team=c")
    assert (none.exit_code, "no flow has the labels team=c" in none.stderr) == (2, True)
    assert "team=a,tier=gold" in shell.run("flow", "list").stdout
    assert shell.json("flow", "list")[0]["labels"] == {"team": "a", "tier": "gold"}


@pytest.mark.slow
def test_pause_of_all_flows_takes_few_transactions_and_reports_unreadable_ones(
    shell: Shell, store: FakeStore
) -> None:
    names = [f"f{number:03}" for number in range(1000)]
    apply(store, "a", *names)
    store.tree.znodes[str(paths.flow("f500"))].data = b"{"
    before = len(store.children(paths.audits()))
    done = shell.run("flow", "pause", "--all", "--reason", "night")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "999 flows changed, 1 failed, 1000 in all"
    assert "/flows/f500: " in done.stderr
    assert {state for name, state in states(store).items() if name != "f500"} == {"suspended"}
    assert len(store.children(paths.audits())) - before < 100, "the audit keeps more than this"
    again = shell.run("flow", "pause", "--all")
    assert again.stdout.splitlines()[-1] == "0 flows changed, 1 failed, 1000 in all"


def test_exit_code_is_that_of_the_worst_failure(shell: Shell, store: FakeStore) -> None:
    apply(store, "a", "one", "two")
    assert shell.run("flow", "pause", "one", "gone").exit_code == 2
    delete_flow(Operator(store, "ann", "", 0.0), "two")
    done = shell.run("flow", "stop", "one", "two", "gone")
    assert (done.exit_code, states(store)["one"]) == (3, "stopped")
    assert done.stdout.splitlines()[-1] == "1 flow changed, 2 failed, 3 in all"
    assert shell.run("flow", "resume", "--all").exit_code == 0, "one that goes is none of them"
    shell.cut = True
    assert shell.run("flow", "pause", "--all").exit_code == 4


@pytest.mark.parametrize(
    "words", [(), ("one", "--all"), ("--all", "--label", "a=b"), ("--all", "--if-revision", "1")]
)
def test_only_one_way_of_choosing_flows_is_accepted(
    shell: Shell, store: FakeStore, words: tuple[str]
) -> None:
    apply(store, "a", "one")
    assert shell.run("flow", "pause", *words).exit_code == 2
    assert states(store) == {"one": "running"}


def test_pause_of_all_flows_succeeds_without_any_flow(shell: Shell) -> None:
    done = shell.run("flow", "pause", "--all")
    assert (done.exit_code, done.stdout) == (0, "0 flows changed, 0 failed, 0 in all\n")


# -- remains of a deleted flow


def drop(store: FakeStore, flow: str) -> None:
    """Drop the flow, as masters do when it is drained."""
    for path in sorted(store.tree.znodes, reverse=True):
        if f"{path}/".startswith((f"/flows/{flow}/", f"/acks/{flow}/", f"/commits/{flow}/")):
            del store.tree.znodes[path]
    store.tree.znodes.pop(f"/intents/{flow}", None)


def test_the_history_of_a_deleted_flow_can_be_read(shell: Shell, store: FakeStore) -> None:
    apply(store, "a", "web")
    apply(store, "b", "web")
    assert shell.run("flow", "delete", "web", "--reason", "moved").exit_code == 0
    drop(store, "web")
    assert states(store) == {}
    shown = shell.run("flow", "history", "web")
    assert shown.exit_code == 0
    assert shown.stdout.startswith(
        "flow web was deleted by ann@ops, 2023-11-14 22:13:20 UTC: moved\n\nflow: web\n"
        "labels: {team: b"
    )
    first, last = shell.json("flow", "history", "web")
    assert (first["revision"], first["author"], first["current"]) == (1, "ann", False)
    assert (last["revision"], last["text"]) == (2, TEXT.format("web", "b"))
    assert shell.run("flow", "list").stdout.count("web") == 0
    assert shell.run("schema", "verify").exit_code == 0


def test_the_next_flow_of_that_name_has_its_own_history(shell: Shell, store: FakeStore) -> None:
    apply(store, "a", "web")
    shell.run("flow", "delete", "web", "--discard", "--yes")
    drop(store, "web")
    apply(store, "b", "web")
    (row,) = shell.json("flow", "history", "web")
    assert (row["current"], row["deleted"]) == (True, "")
    shell.run("flow", "delete", "web")
    drop(store, "web")
    assert shell.json("flow", "history", "web")[0]["text"] == TEXT.format("web", "b")


def test_tombstones_are_bounded(store: FakeStore) -> None:
    for number in range(5):
        operator = Operator(store, "ann", "", float(9 - number))
        store.commit(tombstones.tombstone_writes(operator, f"f{number}", keep=3))
    assert len(store.children(paths.tombstones())) == 3
    assert "f4" in store.children(paths.tombstones())
