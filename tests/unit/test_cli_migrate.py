"""Schema migrations on a fake store: those of this flumeng from version 1 on, and an example.

`tests/live/test_upgrade.py` runs an older flumeng beside this one.
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
from flumeng.control.zookeeper import ABSENT, ANY, Version, Write, tree
from flumeng.control.zookeeper.transaction import MOST_WRITES
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore, FakeTree
from zkschema import bootstrap, codec, paths, records, table
from zkschema.migrations import MIGRATIONS, Change, Delete, Migration, Set, Tree, path_to

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
SIGN = ("ann", "", NOON)
TO_2, TO_3, TO_4, TO_5, *_ = MIGRATIONS
NEXT = table.VERSION + 1


@pytest.fixture
def store() -> FakeStore:
    """A cluster of this version with a flow and an ack, and a live master of this version."""
    store = FakeStore()
    tree.init(store)
    fill(store)
    live = records.LiveMaster(host="h", pid=1, version="0", since=NOON, schema=table.VERSION + 1)
    store.write(paths.live_master("m1"), live, ABSENT)
    return store


@pytest.fixture
def old() -> FakeStore:
    """A cluster of version 1 in which processes of this flumeng run."""
    store = FakeStore()
    for path, record in bootstrap.initial("c", version=1):
        store.write(path, record, ABSENT)
    fill(store)
    live = records.LiveNode(
        uuid="u", incarnation="i", pid=1, version="9", since=0.0, schema=table.VERSION
    )
    store.write(paths.live_node("n1"), live, ABSENT)
    return store


@pytest.fixture
def shell(old: FakeStore) -> Shell:
    return Shell(old.tree)


def fill(store: FakeStore) -> None:
    apply_flow(Operator(store, *SIGN), FLOW)
    ack = records.Ack(epoch=3, offset=40, extra={"later": [1]})
    store.write(paths.ack("web", "main", "web.n1.0.aa"), ack, ABSENT)
    journal = records.Journal(flow="web", node="n1", primary="n1", term=1, in_sync=("n1",))
    store.write(paths.journal("web.n1.0.aa"), journal, ABSENT)
    store.write(paths.node("n1"), records.Node(uuid="u", roles=("ingest",)), ABSENT)


def commands(store: FakeStore) -> list[str]:
    entries = store.read_many([paths.audit(name) for name in store.children(paths.audits())])
    return [entry.value.command for entry in entries if entry]


# -- from version 1 to 2


def test_this_flumeng_uses_a_tree_of_the_version_before_as_that_one_does(old: FakeStore) -> None:
    assert tree.require(old).version == 1
    assert tree.verify(old) == []
    assert not [path for path in old.dump() if table.find(path, 1) is None], "rows of version 2"
    other = FakeStore()
    import_cluster(Operator(other, *SIGN), export_cluster(old))
    assert tree.require(other).version == 1


def test_rows_of_version_2_are_a_fault_in_a_tree_of_version_1(old: FakeStore) -> None:
    old.write(paths.all_intents(), None, ABSENT)
    assert [problem.path for problem in tree.verify(old)] == ["/intents"]


def test_the_tree_is_raised_while_new_processes_run(shell: Shell, old: FakeStore) -> None:
    assert shell.run("schema", "migrate").stdout.splitlines()[-1].endswith("migrate --finish`")
    assert tree.require(old).version == 1, "nothing is raised without --finish"
    done = shell.run("schema", "migrate", "--finish", "--yes", "--reason", "upgraded")
    assert (done.exit_code, tree.require(old).version) == (0, table.VERSION)
    assert tree.verify(old) == []
    assert old.exists(paths.intents("web"))
    assert {"schema migrate 1 -> 2", "schema migrate 2 -> 3"} < set(commands(old))
    assert TO_3.changes(documents_of(old)) == []
    assert "nothing is left to do" in shell.run("schema", "migrate").stdout
    assert shell.json("schema", "migrate") == {"version": table.VERSION, "pending": [], "older": []}


@pytest.mark.parametrize(
    "path",
    [paths.live_node("n0"), paths.live_master("m0")],
)
def test_the_tree_is_not_raised_while_an_older_process_runs(
    shell: Shell, old: FakeStore, path: paths.ZPath[Any]
) -> None:
    """An older flumeng says nothing of schemas in its znode."""
    said = {"v": 1, "version": "0.1", "uuid": "u", "incarnation": "i", "host": "h", "pid": 1}
    old.write(*cluster.at(str(path), {**said, "since": 0.0}), ABSENT)
    before = old.dump()
    refused = shell.run("schema", "migrate", "--finish", "--yes")
    assert (refused.exit_code, old.dump()) == (3, before)
    assert f"{path.name} (flumeng 0.1) cannot use schema version 2" in refused.stderr
    assert shell.json("schema", "migrate")["older"][0]["name"] == path.name
    old.remove(path, ANY)
    assert shell.run("schema", "migrate", "--finish", "--yes").exit_code == 0


def test_a_process_whose_znode_cannot_be_read_counts_as_older(shell: Shell, old: FakeStore) -> None:
    old.write(*cluster.at("/live/nodes/n2", {"v": 9}), ABSENT)
    refused = shell.run("schema", "migrate", "--finish", "--yes")
    assert (refused.exit_code, "node n2" in refused.stderr) == (3, True)


def test_a_flow_that_is_applied_meanwhile_gets_its_folder_too(old: FakeStore) -> None:
    """It was applied after the migration had looked, and before the tree was raised."""

    class Late(FakeStore):
        def commit(self, writes: Sequence[Write]) -> list[Version]:
            if any(write.path.path == "/schema" for write in writes) and not done:
                done.append(apply_flow(Operator(old, *SIGN), FLOW.replace("web", "late")))
            return super().commit(writes)

    done: list[object] = []
    migrate_cluster(Operator(Late(old.tree), *SIGN), TO_2)
    assert done
    assert tree.verify(old) == []
    assert old.exists(paths.intents("late"))


def test_an_apply_that_saw_the_older_version_does_not_land_in_the_newer(old: FakeStore) -> None:
    class Slow(FakeStore):
        def commit(self, writes: Sequence[Write]) -> list[Version]:
            if not done:
                done.append(migrate_cluster(Operator(old, *SIGN), TO_2))
            return super().commit(writes)

    done: list[object] = []
    with pytest.raises(ConflictError, match="/schema"):
        apply_flow(Operator(Slow(old.tree), *SIGN), FLOW.replace("web", "slow"))
    assert not old.exists(paths.flow("slow"))


def test_a_flow_of_version_2_goes_with_all_that_is_of_it() -> None:
    assert [str(path) for path in bootstrap.flow_tops("web")] == [
        "/acks/web", "/commits/web", "/intents/web", "/queues/web", "/flows/web",
    ]  # fmt: skip
    folders = bootstrap.flow_folders("web")
    assert {str(path).split("/")[1] for path in folders} == {"flows", "acks", "commits", "intents"}


QUEUES_OF_1: Tree = {
    "/flows": None, "/flows/a": {"v": 1}, "/flows/a/revisions": None, "/flows/b": {"v": 1},
    "/queues": None, "/queues/a": None, "/queues/a/items": None, "/queues/a/claims": None,
    "/queues/a/items/i1": {"v": 1}, "/queues/a/done": None, "/queues/a/done/0": {"v": 1},
}  # fmt: skip


def test_from_every_prefix_of_its_writes_it_leads_to_the_same_tree() -> None:
    changes = TO_2.changes(QUEUES_OF_1)
    whole = after(QUEUES_OF_1, changes)
    assert set(whole) - set(QUEUES_OF_1) == {"/intents", "/intents/a", "/intents/b"}
    assert [path for path in whole if path.startswith("/queues")] == ["/queues"]
    for length in range(len(changes) + 1):
        part = after(QUEUES_OF_1, changes[:length])
        assert after(part, TO_2.changes(part)) == whole, f"after {length} writes"
    used = {**whole, "/queues/a": {"v": 1}, "/queues/a/lanes": None, "/queues/a/seen": None}
    assert TO_2.changes(used) == [], "what version 2 writes stays"


def test_deleted_flows_get_their_place_once() -> None:
    made = after({"/flows": None}, TO_4.changes({"/flows": None}))
    assert made == {"/flows": None, "/tombstones": None}
    assert TO_4.changes(made) == []


def test_leases_get_their_place_once() -> None:
    made = after({"/flows": None}, TO_5.changes({"/flows": None}))
    assert made == {"/flows": None, "/leases": None}
    assert TO_5.changes(made) == []


# -- the next version, in this example, keeps a flow's acks of a cursor in one znode


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


def test_a_migration_leads_to_the_same_tree_from_every_prefix_of_its_writes(
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
    (pending,) = pending_migrations(store, NEXT, [MIGRATION])
    assert migrate_cluster(Operator(store, *SIGN), pending) == 2, "a folder and its ack"
    found = documents_of(store)
    audits = {path for path in found if path.startswith("/audit/")} - set(expected)
    assert {path: doc for path, doc in found.items() if path not in audits} == expected
    assert json.loads(store.dump()["/schema"])["version"] == NEXT
    assert f"schema migrate {table.VERSION} -> {NEXT}" in commands(store)
    with pytest.raises(UserError, match=f"version {NEXT}, this flumeng knows 1 to {table.VERSION}"):
        tree.require(store)
    assert pending_migrations(store, NEXT, [MIGRATION]) == []


def test_an_interrupted_migration_is_gone_on_with(store: FakeStore) -> None:
    for number in range(2 * MOST_WRITES):
        ack = records.Ack(epoch=1, offset=number)
        store.write(paths.ack("web", "main", f"p{number}"), ack, ABSENT)
    expected = after(documents_of(store), _acks_in_one_znode(documents_of(store)))

    class Failing(FakeStore):
        commits = 0

        def commit(self, writes: Sequence[Write]) -> list[Version]:
            self.commits += 1
            if self.commits == 2:
                raise UnavailableError("gone")
            return super().commit(writes)

    failing = Failing(store.tree)
    with pytest.raises(UnavailableError):
        migrate_cluster(Operator(failing, *SIGN), MIGRATION)
    tree.require(store)
    migrate_cluster(Operator(failing, *SIGN), MIGRATION)
    found = documents_of(store)
    assert {path: found[path] for path in expected} == expected
    with pytest.raises(UserError):
        tree.require(store)


def test_a_migration_heeds_a_change_that_it_did_not_see_at_first(store: FakeStore) -> None:
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


def test_a_missing_migration_is_said_before_anything_is_done(store: FakeStore) -> None:
    assert path_to(table.VERSION, NEXT, [MIGRATION]) == [MIGRATION]
    with pytest.raises(UserError, match=f"version {table.VERSION} to {NEXT + 1}"):
        pending_migrations(store, NEXT + 1, [MIGRATION])
    newer = codec.encode(records.Schema(version=NEXT))
    store.tree.znodes["/schema"] = replace(store.tree.znodes["/schema"], data=newer)
    with pytest.raises(UserError, match="use the flumeng that matches"):
        pending_migrations(store)
    assert Shell(FakeTree()).run("schema", "migrate").exit_code == 2
