"""Schema migrations on a fake store, to made-up next versions.

`tests/live/test_upgrade.py` runs a newer flumeng beside this one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from flumeng.control.commands import cluster
from flumeng.control.commands.cluster import (
    export_cluster,
    import_cluster,
    migrate_cluster,
    pending_migrations,
)
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, tree
from flumeng.control.zookeeper.transaction import MOST_WRITES
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.command_line import NOON, Shell
from tests.testkit.scripted_store import ScriptedStore, concerns, fail_at, once
from tests.testkit.store import FakeStore, FakeTree
from tests.unit.zkschema.made_up_version import (
    BEFORE,
    NEXT,
    TO_NEXT,
    add_intents,
    make_up_next_version,
)
from zkschema import bootstrap, codec, migrations, paths, records, table
from zkschema.migrations import Change, Delete, Migration, Set, Tree, path_to
from zkschema.verify import verify

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
SIGN = ("ann", "", NOON)


@pytest.fixture
def store() -> FakeStore:
    """A cluster of this version with a flow and an ack, and a live master of this version."""
    store = new_cluster()
    fill(store)
    live = records.LiveMaster(host="h", pid=1, version="0", since=NOON, schema=NEXT)
    store.write(paths.live_master("m1"), live, ABSENT)
    return store


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    """A cluster of this version in which processes of a flumeng of the next one run."""
    make_up_next_version(monkeypatch)
    store = FakeStore()
    for path, record in bootstrap.initial("c", version=BEFORE):
        store.write(path, record, ABSENT)
    fill(store)
    come_live(store, "n1", uuid="u", version="9", schema=NEXT)
    return store


@pytest.fixture
def shell(old: FakeStore) -> Shell:
    return Shell(old.tree)


def fill(store: FakeStore) -> None:
    apply_flow(Operator(store, *SIGN), FLOW)
    ack = records.Ack(epoch=3, offset=40, extra={"later": [1]})
    store.write(paths.ack("web", "main", "web.n1.0.aa"), ack, ABSENT)
    add_journal(store, "web.n1.0.aa")
    store.write(paths.node("n1"), records.Node(uuid="u", roles=("ingest",)), ABSENT)


def commands(store: FakeStore) -> list[str]:
    entries = store.read_many([paths.audit(name) for name in store.children(paths.audits())])
    return [entry.value.command for entry in entries if entry]


# -- in the next version, in this example, decided batches have a place


def test_tree_of_the_version_before_is_used_without_migration(old: FakeStore) -> None:
    assert tree.require(old).version == BEFORE
    assert verify(old.dump()) == []
    assert not [path for path in old.dump() if table.find(path, BEFORE) is None], "rows of the next"
    other = FakeStore()
    import_cluster(Operator(other, *SIGN), export_cluster(old))
    assert tree.require(other).version == BEFORE


def test_rows_of_the_next_version_are_a_problem_in_a_tree_of_this_one(old: FakeStore) -> None:
    old.write(paths.all_intents(), None, ABSENT)
    assert [problem.path for problem in verify(old.dump())] == ["/intents"]


def test_tree_is_migrated_while_new_processes_run(shell: Shell, old: FakeStore) -> None:
    assert shell.run("schema", "migrate").stdout.splitlines()[-1].endswith("migrate --finish`")
    assert tree.require(old).version == BEFORE, "nothing is raised without --finish"
    done = shell.run("schema", "migrate", "--finish", "--yes", "--reason", "upgraded")
    assert (done.exit_code, tree.require(old).version) == (0, NEXT)
    assert verify(old.dump()) == []
    assert old.exists(paths.intents("web"))
    assert f"schema migrate {BEFORE} -> {NEXT}" in commands(old)
    assert add_intents(documents_of(old)) == []
    assert "nothing is left to do" in shell.run("schema", "migrate").stdout
    assert shell.json("schema", "migrate") == {"version": NEXT, "pending": [], "older": []}


@pytest.mark.parametrize("path", [paths.live_node("n0"), paths.live_master("m0")])
def test_tree_is_not_migrated_while_an_older_process_runs(
    shell: Shell, old: FakeStore, path: paths.ZPath[Any]
) -> None:
    """An older flumeng says nothing of schemas in its znode."""
    said = {"v": 1, "version": "0.1", "uuid": "u", "incarnation": "i", "host": "h", "pid": 1}
    old.write(*cluster.at(str(path), {**said, "since": 0.0}), ABSENT)
    before = old.dump()
    refused = shell.run("schema", "migrate", "--finish", "--yes")
    assert (refused.exit_code, old.dump()) == (3, before)
    assert f"{path.name} (flumeng 0.1) cannot use schema version {NEXT}" in refused.stderr
    assert shell.json("schema", "migrate")["older"][0]["name"] == path.name
    old.remove(path, ANY)
    assert shell.run("schema", "migrate", "--finish", "--yes").exit_code == 0


def test_process_with_an_unreadable_znode_counts_as_older(shell: Shell, old: FakeStore) -> None:
    old.write(*cluster.at("/live/nodes/n2", {"v": 9}), ABSENT)
    refused = shell.run("schema", "migrate", "--finish", "--yes")
    assert (refused.exit_code, "node n2" in refused.stderr) == (3, True)


def test_flow_applied_during_a_migration_gets_its_folder_too(old: FakeStore) -> None:
    """It was applied after the migration had looked, and before the tree was raised."""

    done: list[object] = []
    late = FLOW.replace("web", "late")
    applying = once(
        lambda: done.append(apply_flow(Operator(old, *SIGN), late)), concerns(paths.schema)
    )
    migrate_cluster(Operator(ScriptedStore(old.tree, before_commit=applying), *SIGN), TO_NEXT)
    assert done
    assert verify(old.dump()) == []
    assert old.exists(paths.intents("late"))


def test_apply_that_began_in_the_older_tree_is_refused_in_the_newer(old: FakeStore) -> None:
    migrating = once(lambda: migrate_cluster(Operator(old, *SIGN), TO_NEXT))
    slow = ScriptedStore(old.tree, before_commit=migrating)
    with pytest.raises(ConflictError, match="/schema"):
        apply_flow(Operator(slow, *SIGN), FLOW.replace("web", "slow"))
    assert not old.exists(paths.flow("slow"))


def test_folders_of_a_flow_are_removed_with_it() -> None:
    assert [str(path) for path in bootstrap.flow_tops("web")] == [
        "/acks/web", "/commits/web", "/intents/web", "/queues/web", "/breaks/web", "/flows/web",
    ]  # fmt: skip
    folders = bootstrap.flow_folders("web")
    assert {str(path).split("/")[1] for path in folders} == {"flows", "acks", "commits", "intents"}


def test_migration_function_leads_to_one_tree_from_every_prefix_of_its_writes() -> None:
    before: Tree = {"/flows": None, "/flows/a": {"v": 1}, "/flows/b": {"v": 1}}
    changes = add_intents(before)
    whole = after(before, changes)
    assert set(whole) - set(before) == {"/intents", "/intents/a", "/intents/b"}
    for length in range(len(changes) + 1):
        part = after(before, changes[:length])
        assert after(part, add_intents(part)) == whole, f"after {length} writes"


# -- the next version, in this other example, keeps a flow's acks of a cursor in one znode


def _acks_in_one_znode(before: Tree) -> list[Change]:
    """``/acks/F/C/P`` become fields of ``/acks/F/C``, which was a folder."""
    changes: list[Change] = []
    for path, document in before.items():
        row = paths.find(path)
        if row is paths.cursor or (path.count("/") == 3 and path.split("/")[1] == "acks"):
            below = {p: d for p, d in before.items() if p.startswith(f"{path}/")}
            done = dict((document or {}).get("acks", {}))
            acks = {p.rpartition("/")[2]: {"epoch": d["epoch"], "offset": d["offset"]}
                    for p, d in below.items() if d}  # fmt: skip
            if document is None or acks:
                changes.append(Set(path, {"v": 2, "acks": {**done, **acks}}))
            changes += [Delete(p) for p in below]
    return changes


MIGRATION = Migration(table.VERSION, "acks of a cursor are one znode", _acks_in_one_znode)


def after(before: Tree, changes: Sequence[Change]) -> dict[str, Any]:
    made = dict(before)
    for change in changes:
        if isinstance(change, Set):
            made[change.path] = change.document
        else:
            del made[change.path]
    return made


def documents_of(store: FakeStore) -> dict[str, Any]:
    found = cluster.documents(store.dump())
    return {path: doc for path, doc in found.items() if path != "/schema"}


def test_stored_migration_leads_to_one_tree_from_every_prefix_of_its_writes(
    store: FakeStore,
) -> None:
    for number in range(3):
        ack = records.Ack(epoch=1, offset=number)
        store.write(paths.ack("web", "main", f"p{number}"), ack, ABSENT)
    before = documents_of(store)
    changes = _acks_in_one_znode(before)
    whole = after(before, changes)
    assert whole["/acks/web/main"]["acks"]["web.n1.0.aa"] == {"epoch": 3, "offset": 40}
    for length in range(len(changes) + 1):
        part = after(before, changes[:length])
        assert after(part, _acks_in_one_znode(part)) == whole, f"after {length} writes"


def test_a_cluster_is_migrated(store: FakeStore) -> None:
    expected = after(documents_of(store), _acks_in_one_znode(documents_of(store)))
    assert migrate_cluster(Operator(store, *SIGN), MIGRATION) == 2, "a folder and its ack"
    found = documents_of(store)
    audits = {path for path in found if path.startswith("/audit/")} - set(expected)
    assert {path: doc for path, doc in found.items() if path not in audits} == expected
    assert json.loads(store.dump()["/schema"])["version"] == NEXT
    assert f"schema migrate {table.VERSION} -> {NEXT}" in commands(store)
    with pytest.raises(UserError, match=f"version {NEXT}, this flumeng knows versions up to"):
        tree.require(store)


@pytest.mark.slow
def test_interrupted_migration_is_completed(store: FakeStore) -> None:
    for number in range(2 * MOST_WRITES):
        ack = records.Ack(epoch=1, offset=number)
        store.write(paths.ack("web", "main", f"p{number}"), ack, ABSENT)
    expected = after(documents_of(store), _acks_in_one_znode(documents_of(store)))

    failing = ScriptedStore(store.tree, before_commit=fail_at(2, UnavailableError("gone")))
    with pytest.raises(UnavailableError):
        migrate_cluster(Operator(failing, *SIGN), MIGRATION)
    tree.require(store)
    migrate_cluster(Operator(failing, *SIGN), MIGRATION)
    found = documents_of(store)
    assert {path: found[path] for path in expected} == expected
    with pytest.raises(UserError):
        tree.require(store)


def test_migration_takes_account_of_a_change_after_its_first_look(store: FakeStore) -> None:
    ack = paths.ack("web", "main", "web.n1.0.aa")
    looks: list[int] = []

    def late(before: Tree) -> Sequence[Change]:
        looks.append(1)
        if len(looks) == 1:
            store.write(ack, records.Ack(epoch=3, offset=99), ANY)
        return _acks_in_one_znode(before)

    migrate_cluster(Operator(store, *SIGN), Migration(table.VERSION, "", late))
    found = documents_of(store)["/acks/web/main"]
    assert found["acks"]["web.n1.0.aa"]["offset"] == 99


def test_missing_migration_is_reported_before_any_change(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "MIGRATIONS", (MIGRATION,))
    assert path_to(table.VERSION, NEXT) == [MIGRATION]
    with pytest.raises(LookupError, match=f"version {table.VERSION} to {NEXT + 1}"):
        path_to(table.VERSION, NEXT + 1)
    newer = codec.encode(records.Schema(version=NEXT))
    store.tree.znodes["/schema"] = replace(store.tree.znodes["/schema"], data=newer)
    with pytest.raises(UserError, match="use a flumeng of a matching version"):
        pending_migrations(store)
    assert Shell(FakeTree()).run("schema", "migrate").exit_code == 2


# -- the version before the first release


def test_an_export_of_the_unreleased_version_is_imported(store: FakeStore) -> None:
    exported = export_cluster(store)
    exported["schema"] = table.UNRELEASED
    exported["znodes"]["/schema"]["version"] = table.UNRELEASED
    other = FakeStore()
    import_cluster(Operator(other, *SIGN), exported)
    assert tree.require(other).version == table.VERSION
    assert verify(other.dump()) == []
    assert other.dump()["/flows/web"] == store.dump()["/flows/web"]
    exported["znodes"]["/schema"]["version"] = table.UNRELEASED - 1
    with pytest.raises(UserError, match="schema version 7 is unsupported: this flumeng"):
        import_cluster(Operator(FakeStore(), *SIGN), exported)


def test_fields_of_the_unreleased_version_get_their_present_names(store: FakeStore) -> None:
    node = records.Node(uuid="u", roles=("ingest", records.REPLICA), down_since=5.0)
    journal = records.Journal(
        flow="web", node="n8", primary="n8", term=1, in_sync=("n8/a",), replicas=("n8", "n9")
    )
    store.write(paths.node("n8"), node, ANY)
    store.write(paths.journal("web.n8.0.0000000a"), journal, ANY)
    exported = export_cluster(store)
    exported["schema"] = exported["znodes"]["/schema"]["version"] = table.UNRELEASED
    document = exported["znodes"]["/nodes/n8"]
    document["roles"] = ["ingest", "copy"]
    document["away_since"] = document.pop("down_since")
    document = exported["znodes"]["/journals/web.n8.0.0000000a"]
    document["copies"] = document.pop("replicas")
    other = FakeStore()
    import_cluster(Operator(other, *SIGN), exported)
    for path, expected in ((paths.node("n8"), node), (paths.journal("web.n8.0.0000000a"), journal)):
        found = other.read(path)
        assert found is not None
        assert found.value == expected


def test_a_cluster_of_the_unreleased_version_is_exported_and_not_used(store: FakeStore) -> None:
    unreleased = codec.encode(records.Schema(version=table.UNRELEASED))
    store.tree.znodes["/schema"] = replace(store.tree.znodes["/schema"], data=unreleased)
    with pytest.raises(UserError, match="schema version 8, this flumeng knows versions up to 1"):
        tree.require(store)
    assert export_cluster(store)["schema"] == table.UNRELEASED
