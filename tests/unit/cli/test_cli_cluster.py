"""Export and import of a whole cluster. On a fake store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flumeng.control.commands import cluster
from flumeng.control.commands.cluster import export_cluster, import_cluster
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.tombstones import tombstone_writes
from flumeng.control.snapshot.task_map import INLINE_TASKS, Tasks, plan_writes, read_plan
from flumeng.control.zookeeper import ABSENT, tree
from flumeng.control.zookeeper.transaction import MOST_WRITES
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.cluster import add_journal, new_cluster
from tests.testkit.command_line import NOON, Shell
from tests.testkit.scripted_store import ScriptedStore, fail_at
from tests.testkit.store import FakeStore, FakeTree
from zkschema import bootstrap, paths, records
from zkschema.verify import verify

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
SIGN = ("ann", "", NOON)


@pytest.fixture
def store() -> FakeStore:
    """A cluster with every kind of record: flow, plan, ack, node, journal, and live processes."""
    store = new_cluster()
    apply_flow(Operator(store, *SIGN), FLOW)
    task = records.PlannedTask(kind="collect", node="n1", epoch=3, state="assigned")
    store.write(paths.plan("web"), records.Plan(epoch=3, tasks={"collect.0": task}), ABSENT)
    store.write(paths.node("n1"), records.Node(uuid="u", roles=("ingest",)), ABSENT)
    add_journal(store, "web.n1.0.aa", "web")
    store.write(
        paths.ack("web", "main", "web.n1.0.aa"),
        records.Ack(epoch=3, offset=40, extra={"later": [1]}),
        ABSENT,
    )
    master = records.LiveMaster(host="h", pid=1, version="0", since=NOON)
    store.write(paths.live_master("m1"), master, ABSENT)
    return store


def clear(store: FakeStore, flow: str) -> None:
    """Remove the znodes of a flow."""
    for path in [path for path in store.tree.znodes if f"/{flow}/" in f"{path}/"]:
        if not path.startswith(("/tombstones/", "/journals/")):
            del store.tree.znodes[path]


def persistent(store: FakeStore) -> dict[str, bytes]:
    return {path: data for path, data in store.dump().items() if path != "/live/masters/m1"}


def commands(store: FakeStore) -> list[str]:
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    return [entry.value.command for entry in entries if entry]


# -- export and import


def test_exported_cluster_is_imported_byte_for_byte(
    shell: Shell, store: FakeStore, tmp_path: Path
) -> None:
    exported = shell.run("schema", "export").stdout
    (tmp_path / "all.json").write_text(exported)
    other = FakeStore()
    done = Shell(other.tree).run("schema", "import", tmp_path / "all.json", "--reason", "move")
    assert (done.exit_code, done.stdout) == (0, f"imported {len(persistent(store))} znodes\n")
    assert "schema import" in commands(other)
    audits = set(other.children(paths.audits())) - set(store.children(paths.audits()))
    back = {path: data for path, data in other.dump().items() if path.split("/")[-1] not in audits}
    there = persistent(store)
    assert back.pop("/schema") != there.pop("/schema"), "the generation is another one"
    assert back == there
    assert verify(other.dump()) == []
    assert json.loads(exported)["znodes"]["/acks/web/main/web.n1.0.aa"] == {
        "v": 1, "epoch": 3, "offset": 40, "later": [1],
    }  # fmt: skip


@pytest.mark.slow
def test_plan_in_buckets_and_large_values_are_imported_byte_for_byte(store: FakeStore) -> None:
    before = read_plan(store, "web")
    assert before is not None
    few = Tasks.of(before.value.tasks)
    many = few.changed(
        {
            f"ingest.host-{number}": records.PlannedTask(
                kind="ingest", node=f"host-{number}", epoch=number, state="assigned"
            )
            for number in range(3 * INLINE_TASKS)
        }
    )
    store.commit(plan_writes("web", replace(before.value, tasks=many), few, before.version))
    partitions = {f"topic.{number}": records.Partition() for number in range(2000)}
    store.write(paths.partitions("web"), records.Partitions(partitions=partitions), ABSENT)
    assert store.children(paths.plan("web"))
    other = FakeStore()
    import_cluster(Operator(other, *SIGN), json.loads(json.dumps(export_cluster(store))))
    mine, theirs = persistent(store), other.dump()
    mine.pop("/schema")  # with another generation
    assert {path: theirs[path] for path in mine} == mine
    back = read_plan(other, "web")
    assert back is not None
    assert dict(back.value.tasks) == dict(many)


def test_after_an_import_only_the_primary_is_in_sync(store: FakeStore) -> None:
    """Another replica may lack events that were answered after the export, and masters promote one
    that is in sync."""
    name, in_sync = "web.n1.0.cc", ("n2/a", "n1/b", "n3/c")
    led = records.Journal(
        flow="web", node="n1", primary="n1", term=3, in_sync=in_sync, replicas=("n1",), lineage="l"
    )
    store.write(paths.journal(name), led, ABSENT)
    other = FakeStore()
    import_cluster(Operator(other, *SIGN), export_cluster(store))
    found = other.read(paths.journal(name))
    assert found is not None
    assert found.value == replace(led, in_sync=("n1/b",))
    again = FakeStore()
    import_cluster(Operator(again, *SIGN), export_cluster(other))
    assert again.dump()[str(paths.journal(name))] == other.dump()[str(paths.journal(name))]


def test_each_import_gives_the_tree_a_higher_generation(store: FakeStore) -> None:
    """The same export may be imported twice; nodes must be able to tell the trees apart."""
    exported, generations = export_cluster(store), [tree.require(store).generation]
    for now in (NOON, NOON + 60):
        other = FakeStore()
        import_cluster(Operator(other, "a", "", now), exported)
        schema = tree.require(other)
        assert schema.cluster == tree.require(store).cluster
        generations.append(schema.generation)
    exported = export_cluster(other)
    other = FakeStore()
    import_cluster(Operator(other, "a", "", 0.0), exported)  # a clock that went back
    generations.append(tree.require(other).generation)
    assert sorted(set(generations)) == generations


def test_import_is_for_an_empty_chroot_only(shell: Shell, store: FakeStore, tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(shell.run("schema", "export").stdout)
    before = store.dump()
    refused = shell.run("schema", "import", tmp_path / "all.json")
    assert (refused.exit_code, store.dump()) == (2, before)
    assert "not empty" in refused.stderr
    foreign = FakeStore()
    foreign.write(*cluster.at("/somebody", None), ABSENT)
    assert Shell(foreign.tree).run("schema", "import", tmp_path / "all.json").exit_code == 2
    assert set(foreign.dump()) == {"/somebody"}


@pytest.mark.slow
def test_half_an_import_is_no_cluster_and_can_be_repeated(store: FakeStore) -> None:
    for number in range(3 * MOST_WRITES):
        add_journal(store, f"web.n1.0.{number}", "web")
    exported = export_cluster(store)

    failing = ScriptedStore(before_commit=fail_at(3, UnavailableError("gone")))
    with pytest.raises(UnavailableError):
        import_cluster(Operator(failing, *SIGN), exported)
    half = len(failing.dump())
    assert 0 < half < len(exported["znodes"])
    with pytest.raises(UserError, match="no flumeng cluster"):
        tree.require(failing)
    import_cluster(Operator(failing, *SIGN), exported)
    tree.require(failing)
    assert set(exported["znodes"]) <= set(failing.dump())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.pop("znodes"), "not a document of"),
        (lambda d: d["znodes"].update({"/flows/x": {"a": 1}}), "not a document of"),
        (
            lambda d: d["znodes"].update({"/nodes/x": {"v": 1}}),
            "/nodes/x: Node.uuid: the field is missing",
        ),
        (lambda d: d["znodes"].update({"/what": None}), "/what: no such znode in the schema"),
        (lambda d: d["znodes"].pop("/cluster"), "/cluster: missing"),
        (lambda d: d["znodes"].update({"/schema": {"v": 1, "version": 99}}), "schema version 99"),
        (lambda d: d["znodes"].update({"/live/nodes/n1": {"v": 1}}), "only a live process"),
    ],
)
def test_document_that_is_no_cluster_is_refused(store: FakeStore, change: Any, said: str) -> None:
    document = json.loads(json.dumps(export_cluster(store)))
    change(document)
    empty = FakeStore()
    with pytest.raises(UserError, match=said):
        import_cluster(Operator(empty, *SIGN), document)
    assert empty.dump() == {}


def test_a_file_that_is_not_json_is_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{")
    result = Shell(FakeTree()).run("schema", "import", tmp_path / "x")
    assert (result.exit_code, "is not JSON" in result.stderr) == (2, True)
    assert Shell(FakeTree()).run("schema", "export").exit_code == 2


@pytest.mark.slow
def test_a_file_without_an_end_is_wrong_input() -> None:
    result = Shell(FakeTree()).run("schema", "import", "/dev/zero")
    assert (result.exit_code, "larger than any export" in result.stderr) == (2, True)


def test_an_empty_cluster_survives_export_and_import() -> None:
    store, other = FakeStore(), FakeStore()
    tree.init(store)
    import_cluster(Operator(other, *SIGN), export_cluster(store))
    assert len(other.dump()) == len(bootstrap.initial()) + 1


def test_flow_missing_in_an_import_can_be_applied_again(store: FakeStore) -> None:
    """Its nodes kept its journals, and deliver them once it is there."""
    older = export_cluster(store)
    other = FakeStore()
    import_cluster(Operator(other, *SIGN), older)
    add_journal(other, "new.n1.0.bb", "new")
    assert apply_flow(Operator(other, *SIGN), FLOW.replace("web", "new")).changed


def test_flow_name_deleted_after_an_import_is_free_once_its_journals_are_gone(
    store: FakeStore,
) -> None:
    """Also where an earlier flow of that name was deleted before the export."""

    apply_flow(Operator(store, *SIGN), FLOW.replace("web", "new"))
    clear(store, "new")
    store.commit(tombstone_writes(Operator(store, *SIGN), "new"))
    other = FakeStore()
    import_cluster(Operator(other, *SIGN), export_cluster(store))
    add_journal(other, "new.n1.0.bb", "new")
    text = FLOW.replace("web", "new")
    assert apply_flow(Operator(other, *SIGN), text).changed
    other.commit(tombstone_writes(Operator(other, *SIGN), "new"))
    clear(other, "new")
    with pytest.raises(ConflictError, match="still has journals of a deleted flow new"):
        apply_flow(Operator(other, *SIGN), text)
