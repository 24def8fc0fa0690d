"""``schema verify`` finds problems of a tree, and ``--fix`` repairs those that it can.

Orphans, dangling references, stale ephemerals, oversize and damaged values: each kind is made on a
fake store, found and repaired, and a znode that only looks like one stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from flumeng.control.commands.cluster import repair_cluster, repairs, verify_cluster
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot.task_map import read_plan
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.control.zookeeper.transaction import MOST_WRITES
from flumeng.platform.errors import ConflictError
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.command_line import NOON, Shell
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore
from zkschema import codec, paths, records, table
from zkschema.records import Record
from zkschema.repair import EPOCH_GAP
from zkschema.table import ZPath

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
SIGN = ("ann", "", NOON)


@pytest.fixture
def store() -> FakeStore:
    """Flow web at revision 2, planned on node n1 with one journal that is acked; a live master."""
    store = new_cluster()
    apply_flow(Operator(store, *SIGN), FLOW)
    apply_flow(Operator(store, *SIGN), FLOW + "# 2\n")
    store.write(paths.node("n1"), records.Node(uuid="u", roles=("ingest",)), ABSENT)
    add_journal(store, "web.n1.0.aa", "web")
    task = records.PlannedTask(
        kind="collect", node="n1", epoch=3, state="assigned", partitions=("web.n1.0.aa",)
    )
    store.write(paths.plan("web"), records.Plan(epoch=3, tasks={"collect.0": task}), ABSENT)
    told = records.AssignedTask(
        flow="web", task="collect.0", kind="collect", epoch=4, revision=2, state="running"
    )
    store.write(paths.assignment("n1"), records.Assignment(tasks=(told,)), ABSENT)
    store.write(paths.status("n1"), records.NodeStatus(assignment_version=0), ABSENT)
    store.write(paths.story("n1"), records.Story(), ABSENT)
    add_ack(store, "web.n1.0.aa", 3)
    live = records.LiveMaster(host="h", pid=1, version="0", since=NOON)
    store.write(paths.live_master("m1"), live, ABSENT)
    assert verify_cluster(store) == []
    return store


def add_ack(store: FakeStore, partition: str, epoch: int = 1) -> None:
    ack = records.Ack(epoch=epoch, offset=1)
    store.write(paths.ack("web", "main", partition), ack, ABSENT)


def spoil(store: FakeStore, path: ZPath[Record], data: bytes) -> None:
    """Write data that no flumeng writes."""
    store.tree.znodes[str(path)] = replace(store.tree.znodes[str(path)], data=data)


def read(store: FakeStore, path: ZPath[Record]) -> dict[str, object]:
    document: dict[str, object] = json.loads(store.dump()[str(path)])
    return document


def audits(store: FakeStore) -> list[str]:
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    return [entry.value.command for entry in entries if entry]


def found(shell: Shell) -> list[tuple[str, str]]:
    return [(p["path"], p["remedy"]) for p in shell.json("schema", "verify")]


# -- orphans


def _journal_of_a_gone_flow(store: FakeStore) -> list[str]:
    add_journal(store, "old.n1.0.bb", "old")
    return ["/journals/old.n1.0.bb"]


def _ack_of_a_gone_journal(store: FakeStore) -> list[str]:
    add_ack(store, "web.n1.0.gone")
    return ["/acks/web/main/web.n1.0.gone"]


def _acks_of_a_gone_flow(store: FakeStore) -> list[str]:
    for folder in (paths.acks("old"), paths.cursor("old", "main"), paths.commits("old")):
        store.write(folder, None, ABSENT)
    ack = records.Ack(epoch=1, offset=1)
    store.write(paths.ack("old", "main", "old.n1.0.bb"), ack, ABSENT)
    commit = records.Commit(epoch=1, staging=(), files=())
    store.write(paths.commit("old", "collect.0@u"), commit, ABSENT)
    return ["/acks/old", "/commits/old"]


def _queue_of_a_gone_flow(store: FakeStore) -> list[str]:
    store.write(paths.queue("old"), records.Queue(epoch=1), ABSENT)
    store.write(paths.queue_lanes("old"), None, ABSENT)
    return ["/queues/old"]


def _bucket_that_no_plan_counts(store: FakeStore) -> list[str]:
    store.write(paths.plan_bucket("web", "0"), records.Plan(), ABSENT)
    return ["/flows/web/plan/0"]


# -- stale ephemerals


def _stale_master(store: FakeStore) -> list[str]:
    live = replace(store.tree.znodes["/live/masters/m1"], session=0)
    store.tree.znodes["/live/masters/m0"] = live
    return ["/live/masters/m0"]


def _stale_node(store: FakeStore) -> list[str]:
    come_live(store, "n1", uuid="u", since=NOON)
    store.tree.znodes["/live/nodes/n1"].session = 0
    return ["/live/nodes/n1"]


REMOVED = (
    _journal_of_a_gone_flow,
    _ack_of_a_gone_journal,
    _acks_of_a_gone_flow,
    _queue_of_a_gone_flow,
    _bucket_that_no_plan_counts,
    _stale_master,
    _stale_node,
)


@pytest.mark.parametrize("make", REMOVED, ids=lambda make: make.__name__.strip("_"))
def test_orphans_are_found_and_removed(
    shell: Shell, store: FakeStore, make: Callable[[FakeStore], list[str]]
) -> None:
    before = set(store.dump())
    made = make(store)
    assert found(shell) == [(path, "removed") for path in made]
    refused = shell.run("schema", "verify", "--fix", typed="n\n")
    assert (refused.exit_code, made[0] in store.dump()) == (1, True)
    done = shell.run("schema", "verify", "--fix", "--yes", "--reason", "tidy")
    assert (done.exit_code, done.stdout) == (0, "every znode conforms to schema version 1\n")
    assert done.stderr.endswith(f"{len(made)} of {len(made)} repairs done\n")
    assert {path for path in store.dump() if not path.startswith("/audit/")} == {
        path for path in before if not path.startswith("/audit/")
    }
    assert any(c.startswith("schema verify --fix: ") and made[0] in c for c in audits(store))
    assert shell.run("schema", "verify", "--fix").exit_code == 0


def test_all_kinds_of_orphans_are_removed_at_once(shell: Shell, store: FakeStore) -> None:
    made = sorted(path for make in REMOVED for path in make(store))
    assert [path for path, _ in found(shell)] == made
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 0


def test_znode_that_only_looks_like_an_orphan_stays(shell: Shell, store: FakeStore) -> None:
    add_ack(store, "kafka.7")
    known = records.Partitions(partitions={"kafka.7": records.Partition()})
    store.write(paths.partitions("web"), known, ABSENT)
    add_ack(store, "planned")
    plan = read_plan(store, "web")
    assert plan is not None
    task = replace(plan.value.tasks["collect.0"], partitions=("planned",))
    store.write(paths.plan("web"), replace(plan.value, buckets=1, tasks={}), ANY)
    store.write(paths.plan_bucket("web", "0"), records.Plan(tasks={"collect.0": task}), ABSENT)
    come_live(store, "n9", uuid="u9", since=NOON)
    add_journal(store, "web.n9.0.cc", "web", node="n9")
    assert found(shell) == []


def test_former_orphan_with_a_new_owner_stays(store: FakeStore) -> None:
    _journal_of_a_gone_flow(store)
    _ack_of_a_gone_journal(store)
    wanted = repairs(store)
    store.write(paths.flow("old"), records.Flow(revision=1), ABSENT)
    done = repair_cluster(Operator(store, *SIGN), wanted)
    assert [repair.path for repair in done] == ["/acks/web/main/web.n1.0.gone"]
    assert store.exists(paths.journal("old.n1.0.bb"))
    assert not store.exists(paths.ack("web", "main", "web.n1.0.gone"))


def test_orphan_that_changes_meanwhile_stays(store: FakeStore) -> None:
    _ack_of_a_gone_journal(store)
    ack, moved = paths.ack("web", "main", "web.n1.0.gone"), records.Ack(epoch=2, offset=2)
    meddled = ScriptedStore(store.tree, before_commit=lambda _: store.write(ack, moved, ANY))
    with pytest.raises(ConflictError, match=r"web\.n1\.0\.gone was changed"):
        repair_cluster(Operator(meddled, *SIGN), repairs(store))
    assert store.exists(paths.ack("web", "main", "web.n1.0.gone"))


@pytest.mark.slow
def test_very_many_leaked_acks_are_removed_in_several_transactions(
    shell: Shell, store: FakeStore
) -> None:
    count = MOST_WRITES + 50
    for number in range(count):
        add_ack(store, f"web.n1.0.{number}")
    done = shell.run("schema", "verify", "--fix", "--yes")
    assert (done.exit_code, f"{count} of {count} repairs done" in done.stderr) == (0, True)
    assert store.children(paths.cursor("web", "main")) == ["web.n1.0.aa"]


# -- dangling references


def test_flow_without_its_text_gets_the_newest_one_again(shell: Shell, store: FakeStore) -> None:
    store.remove(paths.revision("web", "2"), ANY)
    assert found(shell) == [("/flows/web", "revision 1 is applied again, as revision 3")]
    lost = shell.run("flow", "show", "web")
    assert (lost.exit_code, "see `flumeng schema verify`" in lost.stderr) == (1, True)
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 0
    shown = shell.json("flow", "show", "web")
    assert (shown["revision"], shown["text"], shown["state"]) == (3, FLOW, "running")
    assert shown["reason"] == "repair: revision 1 again, because revision 2 cannot be read"


def test_flow_without_any_text_is_reported_and_not_repaired(shell: Shell, store: FakeStore) -> None:
    for number in ("1", "2"):
        store.remove(paths.revision("web", number), ANY)
    assert found(shell) == [("/flows/web", "")]
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 1
    apply_flow(Operator(store, *SIGN), FLOW)
    assert found(shell) == []


def test_journal_without_its_node_is_removed_with_its_acks(shell: Shell, store: FakeStore) -> None:
    add_journal(store, "web.n9.0.cc", "web", node="n9")
    add_ack(store, "web.n9.0.cc")
    ((path, remedy),) = found(shell)
    assert path == "/journals/web.n9.0.cc"
    assert remedy == "removed with its acks: events that only the missing node has are given up"
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 0
    assert not [path for path in store.dump() if "n9" in path]


def test_a_missing_folder_is_created(shell: Shell, store: FakeStore) -> None:
    store.remove(paths.commits("web"), ANY)
    store.remove(paths.queues(), ANY)
    assert found(shell) == [("/commits/web", "created"), ("/queues", "created")]
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 0
    assert store.exists(paths.queues())


# -- oversize and damaged values

BIG = b'{"v":1,"tasks":{},"pad":"' + b"x" * 600_000 + b'"}'
RESET = [
    (paths.status("n1"), "removed: the node writes this znode again"),
    (paths.story("n1"), "removed: the node writes this znode again"),
    (paths.assignment("n1"), "emptied: masters write the assignment again"),
    (paths.cluster(), "set to defaults"),
    (paths.link("web"), "removed: discovery writes this znode again"),
    (paths.breaks("web"), "removed: earlier gaps are no longer reported here"),
    (paths.acks("web"), "emptied: folders have no data"),
]


@pytest.mark.parametrize("data", [BIG, b"{", b"\x1f\x8b\x00"], ids=["oversize", "cut", "bad gzip"])
@pytest.mark.parametrize(("path", "remedy"), RESET, ids=[str(path) for path, _ in RESET])
def test_derivable_value_is_reset(
    shell: Shell, store: FakeStore, path: ZPath[Record], remedy: str, data: bytes
) -> None:
    link = records.Link(site="fra", source="web", keep_seconds=60.0)
    store.write(paths.link("web"), link, ABSENT)
    store.write(paths.breaks("web"), records.Breaks(), ABSENT)
    spoil(store, path, data)
    assert found(shell) == [(str(path), remedy)]
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 0
    assert len(store.dump().get(str(path), b"")) <= path.row.size_bytes


@pytest.mark.parametrize("data", [BIG, b"{"], ids=["oversize", "cut"])
def test_damaged_plan_is_recreated_above_every_used_epoch(
    shell: Shell, store: FakeStore, data: bytes
) -> None:
    store.write(paths.plan_bucket("web", "0"), records.Plan(), ABSENT)
    spoil(store, paths.plan("web"), data)
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 0
    assert read(store, paths.plan("web"))["epoch"] == 4 + EPOCH_GAP
    assert store.children(paths.plan("web")) == []


@pytest.mark.parametrize(
    ("acked", "epoch"), [(1, 9), (12, 12)], ids=["below the plan's", "above the plan's"]
)
def test_damaged_bucket_of_a_plan_resets_the_whole_plan(
    shell: Shell, store: FakeStore, acked: int, epoch: int
) -> None:
    """Under an epoch that is not below any in the acks."""
    add_journal(store, "web.n1.0.cc", "web")
    add_ack(store, "web.n1.0.cc", epoch=acked)
    plan = read_plan(store, "web")
    assert plan is not None
    head = replace(plan.value, buckets=2, tasks={}, epoch=9, revision=1)
    store.write(paths.plan("web"), head, ANY)
    for number in ("0", "1"):
        store.write(paths.plan_bucket("web", number), records.Plan(), ABSENT)
    spoil(store, paths.plan_bucket("web", "1"), b"{")
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 0
    plan_now = read(store, paths.plan("web"))
    assert (plan_now["epoch"], plan_now["revision"]) == (epoch, 1), "the rollout goes on"
    assert store.children(paths.plan("web")) == []


def test_damaged_text_is_replaced_by_the_newest_readable_one(
    shell: Shell, store: FakeStore
) -> None:
    spoil(store, paths.revision("web", "1"), BIG)
    assert found(shell) == [("/flows/web/revisions/1", "removed")]
    spoil(store, paths.revision("web", "1"), codec.encode(
        records.Revision(text=FLOW, author="a", reason="", time=NOON)))  # fmt: skip
    spoil(store, paths.revision("web", "2"), b"{")
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 0
    assert store.children(paths.revisions("web")) == ["1", "3"]
    assert shell.json("flow", "show", "web")["text"] == FLOW


def test_a_damaged_flow_is_suspended_and_keeps_its_text(shell: Shell, store: FakeStore) -> None:
    spoil(store, paths.flow("web"), b"{")
    done = shell.run("schema", "verify", "--fix", "--yes")
    assert done.exit_code == 0, done.stdout
    assert "and the flow is suspended: resume it if that revision is right" in done.stderr
    shown = shell.json("flow", "show", "web")
    assert (shown["state"], shown["revision"], shown["text"]) == ("suspended", 3, FLOW + "# 2\n")


def test_an_audit_entry_that_is_damaged_is_removed(shell: Shell, store: FakeStore) -> None:
    entry = store.children(paths.audits())[0]
    spoil(store, paths.audit(entry), b"{")
    assert found(shell) == [(f"/audit/{entry}", "removed")]
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 0


@pytest.mark.parametrize(
    "path",
    [paths.node("n1"), paths.journal("web.n1.0.aa"), paths.ack("web", "main", "web.n1.0.aa")],
    ids=str,
)
def test_problem_for_a_person_is_reported_and_left(
    shell: Shell, store: FakeStore, path: ZPath[Record]
) -> None:
    spoil(store, path, b"{")
    before = store.dump()
    assert (str(path), "") in found(shell)
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 1
    assert store.dump()[str(path)] == before[str(path)]


@pytest.mark.parametrize("path", [path for path, _ in RESET[:4]], ids=str)
def test_znode_of_a_newer_version_is_left(
    shell: Shell, store: FakeStore, path: ZPath[Record]
) -> None:
    spoil(store, path, b'{"v":2}')
    before = store.dump()
    assert found(shell) == [(str(path), "")]
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 1
    assert store.dump() == before


def test_a_tree_of_another_version_is_not_touched(shell: Shell, store: FakeStore) -> None:
    _journal_of_a_gone_flow(store)
    spoil(store, paths.schema(), codec.encode(records.Schema(version=table.VERSION + 1)))
    before = store.dump()
    assert shell.run("schema", "verify", "--fix", "--yes").exit_code == 1
    assert store.dump() == before
    empty = FakeStore()
    assert Shell(empty.tree).run("schema", "verify", "--fix", "--yes").exit_code == 1
    assert empty.dump() == {}
