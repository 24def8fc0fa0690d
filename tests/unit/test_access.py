"""Access lists: what the table of znodes says of each path, and nothing for anybody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng.errors import ConflictError, UserError
from flumeng.operations.cluster import verify_cluster
from flumeng.operations.securing import secure_cluster
from flumeng.store import ABSENT, ANY, access_lists, tree
from flumeng.testing import FakeStore
from zkschema import paths, records, table
from zkschema.access import GROUPS, NAMED, PERMISSIONS, Secured, acl

MEMBERS = ("node:n1", "node:n2", "operator:al", "subscriber:job")
SECURED = Secured("c", MEMBERS)
JOURNAL = "web.n1.0.0123abcd"
LIVE = records.LiveNode(uuid="u", incarnation="i", pid=1, version="1", since=1.0)


def filled(pattern: str) -> str:
    """A path of a row, with names of nobody."""
    return table.PLACEHOLDER.sub("x", pattern)


@pytest.mark.parametrize("row", table.ROWS, ids=lambda row: row.pattern)
def test_every_list_is_of_roles_and_members_and_only_an_admin_may_change_it(
    row: table.Row[records.Record],
) -> None:
    entries = dict(acl(filled(row.pattern), SECURED))
    assert entries.keys() <= {"admin", *GROUPS, *MEMBERS}
    assert entries["admin"] == PERMISSIONS
    assert not any("a" in may for who, may in entries.items() if who != "admin")
    assert all("r" in may for may in entries.values())
    roles = " ".join((row.access.write, row.access.create, row.access.delete, row.access.read))
    known = {*GROUPS, *NAMED, *(f"own-{role}" for role in NAMED)}
    assert set(roles.split()) <= known


def test_viewers_and_executors_change_nothing() -> None:
    for row in table.ROWS:
        entries = dict(acl(filled(row.pattern), SECURED))
        assert {entries["viewer"], entries["executor"]} == {"r"}, row.pattern


def test_whom_a_path_names_has_it_and_no_other() -> None:
    assert dict(acl("/nodes/n1/status", SECURED)).get("node:n1") == "rw"
    assert "node:n2" not in dict(acl("/nodes/n1/status", SECURED))
    assert dict(acl(f"/journals/{JOURNAL}", SECURED))["node:n1"] == "rw"
    assert dict(acl(f"/acks/web/main/{JOURNAL}", SECURED))["node:n1"] == "r"
    assert dict(acl(f"/acks/web/job/{JOURNAL}", SECURED))["subscriber:job"] == "rw"
    assert dict(acl(f"/acks/web/main/{JOURNAL}", SECURED))["subscriber:job"] == "r"


def test_a_name_that_was_not_admitted_is_in_no_list() -> None:
    assert "node:n9" not in dict(acl("/nodes/n9/status", SECURED))


def test_a_path_that_no_row_knows_is_read_only() -> None:
    assert {may for who, may in acl("/else", SECURED) if who != "admin"} == {"r"}


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    tree.init(store)
    return store


def secure(store: FakeStore, *admit: str, expel: tuple[str, ...] = (), cluster: str = "c") -> int:
    said = {"author": "a", "reason": "r"}
    return secure_cluster(store, cluster=cluster, admit=admit, expel=expel, now=1.0, **said)


def test_what_is_there_and_what_comes_has_its_list(store: FakeStore) -> None:
    assert secure(store, *MEMBERS) > 10
    store.write(paths.flow("web"), records.Flow(revision=1), ABSENT)
    said = store.tree.znodes["/flows/web"].access
    assert said == access_lists.wanted("/flows/web", SECURED)
    assert ("x509:CN=operator:al,O=c", "rwcd") in said
    assert secure(store) == 0, "it was not settled"


def test_who_would_be_locked_out_is_named(store: FakeStore) -> None:
    store.write(paths.live_node("n1"), LIVE, ABSENT)
    with pytest.raises(ConflictError, match=r"node n1 \(flumeng 1\) would be locked out"):
        secure(store)
    store.write(paths.live_node("n1"), replace(LIVE, identity="node:n1"), ANY)
    with pytest.raises(ConflictError, match="add --member node:n1"):
        secure(store)
    assert tree.require(store).features == ()
    secure(store, "node:n1")
    assert verify_cluster(store) == []


def test_the_expelled_are_not_live_any_more(store: FakeStore) -> None:
    secure(store, *MEMBERS)
    store.write(paths.live_node("n2"), replace(LIVE, identity="node:n2"), ABSENT)
    secure(store, expel=("node:n2",))
    assert store.children(paths.live_nodes()) == []
    assert "node:n2" not in tree.require(store).members


@pytest.mark.parametrize("member", ["node", "node:", "master:m", "admin", "node:a b", "x:y"])
def test_only_names_of_nodes_operators_and_subscribers_are_members(
    store: FakeStore, member: str
) -> None:
    with pytest.raises(UserError, match="is no member"):
        secure(store, member)


def test_certificates_of_another_cluster_do_not_take_it_over(store: FakeStore) -> None:
    secure(store)
    with pytest.raises(UserError, match="this cluster is c in certificates, not other"):
        secure(store, cluster="other")
