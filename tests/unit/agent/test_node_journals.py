"""Journals on a node's disk are registered, and trimmed, after any loss of a znode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flumeng.agent.node.daemon import ALL_SECONDS
from flumeng.agent.node.events import Reported
from flumeng.agent.node.protocol import Message
from flumeng.control.commands.cluster import export_cluster, import_cluster
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY
from tests.testkit.cluster import add_journal, come_live
from tests.unit.agent.node_bench import Bench, task
from zkschema import paths, records

JOURNAL = "web.n1.0.light"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.apply("web")
    bench.assign(task("web"))
    bench.turns()
    assert bench.store.children(paths.journals()) == [JOURNAL]
    return bench


def test_removed_registration_is_restored_after_a_reconnect(bench: Bench) -> None:
    bench.store.remove(paths.journal(JOURNAL), ANY)
    bench.reconnect()
    assert bench.store.children(paths.journals()) == [JOURNAL]


def test_removed_registration_is_restored_in_time(bench: Bench) -> None:
    bench.store.remove(paths.journal(JOURNAL), ANY)
    bench.turns(ALL_SECONDS + 20)
    assert bench.store.children(paths.journals()) == [JOURNAL]


def test_import_without_node_and_journal_gets_both(tmp_path: Path) -> None:
    """Events of a journal that is not registered are not collected."""
    bench = Bench(tmp_path / "other")
    bench.apply("web")
    older = export_cluster(bench.store)
    bench.assign(task("web"))
    bench.turns()
    for path in [path for path in bench.store.tree.znodes if path != "/"]:
        del bench.store.tree.znodes[path]
    older["znodes"] = {p: z for p, z in older["znodes"].items() if not p.startswith("/nodes/")}
    import_cluster(Operator(bench.store, "a", "", 1.0), older)
    bench.turns()
    assert bench.store.exists(paths.node("n1"))
    assert bench.store.children(paths.journals()) == [JOURNAL]


def test_repaired_journal_registration_is_closed_with_its_journal(bench: Bench) -> None:
    znode = bench.store.tree.znodes[str(paths.journal(JOURNAL))]
    good = znode.data
    bench.damage(paths.journal(JOURNAL), b"{")
    bench.reconnect()
    bench.assign()
    bench.turns()
    assert str(paths.journal(JOURNAL)) in bench.status.problems
    znode.version += 1
    bench.damage(paths.journal(JOURNAL), good)
    bench.turns()
    found = bench.store.read(paths.journal(JOURNAL))
    assert found is not None
    assert found.value.closed
    assert bench.status.problems == {}


def test_damaged_and_removed_registration_is_rewritten(bench: Bench) -> None:
    bench.damage(paths.journal(JOURNAL), b"{")
    bench.reconnect()
    assert str(paths.journal(JOURNAL)) in bench.status.problems
    bench.store.remove(paths.journal(JOURNAL), ANY)
    bench.turns()
    assert bench.store.children(paths.journals()) == [JOURNAL]
    assert bench.status.problems == {}


def test_damaged_registration_of_a_foreign_journal_is_reported_until_it_goes(bench: Bench) -> None:
    other = paths.journal("web.n1.0.gone")
    bench.store.tree.znodes[str(other)] = type(bench.store.tree.znodes["/"])(b"{")
    bench.start()
    bench.turns()
    assert str(other) in bench.status.problems
    del bench.store.tree.znodes[str(other)]
    bench.turns(ALL_SECONDS + 20)
    assert bench.status.problems == {}


def test_damaged_revision_is_a_problem_only_while_a_task_needs_it(bench: Bench) -> None:
    revision = paths.revision("web", "1")
    bench.apply("app")
    bench.damage(revision, b"{")
    bench.start()
    bench.turns()
    assert str(revision) in bench.status.problems
    bench.assign(task("app"))
    bench.turns()
    assert bench.status.problems == {}


def ack(bench: Bench, offset: int) -> None:
    znode = paths.ack("web", "main", JOURNAL)
    bench.store.write(paths.cursor("web", "main"), None, ANY)
    bench.store.write(znode, records.Ack(epoch=1, offset=offset), ANY)


def told_acks(bench: Bench) -> list[int]:
    acks = (told["acks"] for told in bench.told if told["type"] == "acks")
    return [offset for told in acks for offset in told.values()]


def tell_journals(bench: Bench, flows: dict[str, str]) -> None:
    """The worker reports that these journals are on its disk: name -> flow."""
    journals = {
        name: {"flow": flow, "term": 1, "closed": False, "end": None}
        for name, flow in flows.items()
    }
    said: Message = {"type": "status", "answers": 0, "tasks": {}, "journals": journals}
    bench.node.hear(Reported("ingest.0", said))
    bench.turns()


def test_journal_that_a_live_node_has_too_does_not_block_others(bench: Bench) -> None:
    theirs = records.Journal(flow="web", node="n9", primary="n9", term=1, in_sync=("n9",))
    come_live(bench.store, "n9", uuid="x", incarnation="x", version="1")
    bench.store.write(paths.journal("web.n9.0.zz"), theirs, ABSENT)
    tell_journals(bench, {JOURNAL: "web", "web.n9.0.zz": "web"})
    ack(bench, 900)
    bench.turns()
    assert told_acks(bench)[-1] == 900
    assert "n9, which is live" in bench.status.problems["/journals/web.n9.0.zz"]
    bench.store.remove(paths.live_node("n9"), ANY)
    bench.turns()
    found = bench.store.read(paths.journal("web.n9.0.zz"))
    assert found is not None
    assert found.value.primary == "n1"
    assert bench.status.problems == {}


@pytest.mark.parametrize("flow", ["f" * 20_000, "../web", ""])
def test_refused_journal_registration_does_not_block_others(bench: Bench, flow: str) -> None:
    tell_journals(bench, {"x.n1.0.zz": flow, JOURNAL: "web"})
    ack(bench, 900)
    bench.turns()
    assert told_acks(bench)[-1] == 900
    assert "/journals/x.n1.0.zz" in bench.status.problems


def test_registration_with_an_invalid_flow_name_harms_no_other(bench: Bench) -> None:
    add_journal(bench.store, "web.n1.0.odd", flow="../web")
    bench.start()
    bench.turns()
    ack(bench, 900)
    bench.turns()
    assert told_acks(bench)[-1] == 900
    assert "/journals/web.n1.0.odd" in bench.status.problems


def test_registration_with_an_invalid_journal_name_harms_nothing(bench: Bench) -> None:
    add_journal(bench.store, "web.n1.x.zz")
    bench.store.write(paths.cursor("web", "main"), None, ANY)
    znode = paths.ack("web", "main", "web.n1.x.zz")
    bench.store.write(znode, records.Ack(epoch=1, offset=5), ABSENT)
    bench.reconnect()
    ack(bench, 900)
    bench.turns()
    assert told_acks(bench)[-1] == 900


@pytest.mark.parametrize("path", ["/nodes/n1", "/schema", "/nodes/n1/status", "/nodes/n1/story"])
def test_trimming_continues_with_any_record_of_the_node_damaged(
    bench: Bench, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log does not repeat alternating messages."""
    znode = bench.store.tree.znodes[path]
    znode.version += 1
    bench.damage(path, b"{")
    ack(bench, 500)
    caplog.set_level("INFO", "flumeng.agent.node")
    tell_journals(bench, {JOURNAL: "web"})
    bench.turns(60.0)
    assert told_acks(bench)[-1] == 500
    assert len(caplog.records) <= 3, caplog.messages


def test_quiet_node_lists_journals_once_per_process(bench: Bench) -> None:
    """The list grows with the cluster; all nodes would read it after a failover of ZooKeeper."""
    store = bench.store
    for number in range(50):
        add_journal(store, f"web.m{number}.0.00000000", flow="web", node=f"m{number}", in_sync=())
    bench.turns()
    listed = bench.journals_listed
    for _ in range(10):
        bench.reconnect()
    bench.turns(2 * ALL_SECONDS)
    assert bench.journals_listed == listed
    bench.start()
    bench.turns()
    assert bench.journals_listed == listed + 1


def test_import_of_another_tree_lists_journals_again(bench: Bench) -> None:
    store = bench.store
    listed = bench.journals_listed
    found = store.read(paths.schema())
    assert found is not None
    add_journal(store, "web.n1.0.lost", closed=True, end=0)
    again = replace(found.value, generation=found.value.generation + 1)
    store.write(paths.schema(), again, found.version)
    bench.turns()
    assert bench.journals_listed == listed + 1
    assert not store.exists(paths.journal("web.n1.0.lost")), "nobody needs it"
