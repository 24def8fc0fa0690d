"""Access lists: the rights that the table of znodes gives on each path, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from flumeng.control.commands.cluster import (
    access_problems,
    export_cluster,
    import_cluster,
    verify_cluster,
)
from flumeng.control.commands.flows import apply_flows
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster, set_access
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    AccessList,
    Found,
    Path,
    Version,
    Versioned,
    Write,
    access_lists,
    tree,
)
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.cluster import new_cluster
from tests.testkit.scripted_store import ScriptedStore, fail, removes
from tests.testkit.store import FakeStore
from zkschema import paths, records, table
from zkschema.access import ANY_OPERATOR, GROUPS, MEMBERS, NAMED, PERMISSIONS, Secured, acl
from zkschema.codec import R
from zkschema.table import ZPath

ADMITTED = ("node:n1", "node:n2", "operator:al", "subscriber:job")
IDENTITIES = tuple((group, group) for group in (*NAMED, ANY_OPERATOR))
GROUPS_OF_MEMBERS = {MEMBERS + group for group, _ in IDENTITIES}
SECURED = Secured("c", ("operator:al",), IDENTITIES)
BOB = "operator:bob"
LIMITED = Secured("c", ("operator:al", f"{BOB}@app-*,web"), IDENTITIES)
OF_BOB = (BOB, "@any-operator")
OF_AL = ("operator:al", "@operator", "@any-operator")
JOURNAL = "web.n1.0.0123abcd"
COPIED = records.Journal(
    flow="web", node="n1", primary="n1", term=1, in_sync=("n1/a",), replicas=("n1",), lineage="l"
)
READ_BY_ALL = [row for row in table.ROWS if row not in (table.groups, table.member)]
ROLES = {
    row.pattern: {
        role
        for roles in (row.access.write, row.access.create, row.access.delete, row.access.read)
        for role in roles.split()
    }
    | {*row.access.admin.split()}
    for row in table.ROWS
}
LIVE = records.LiveNode(uuid="u", incarnation="i", pid=1, version="1", since=1.0)


def filled(pattern: str) -> str:
    """A path of a row with names of no member."""
    return table.PLACEHOLDER.sub("x", pattern)


def may(path: str, secured: Secured, *identities: str) -> str:
    """The permissions of a member with these identities."""
    entries = dict(acl(path, secured))
    allowed = set("".join(entries.get(one, "") for one in identities))
    return "".join(one for one in PERMISSIONS if one in allowed)


@pytest.mark.parametrize("row", table.ROWS, ids=lambda row: row.pattern)
def test_every_list_names_roles_and_members_and_mostly_admins_may_change_it(
    row: table.Row[records.Record],
) -> None:
    path = filled(row.pattern)
    entries = dict(acl(path, SECURED))
    named = {"x"} if row is table.member else set()
    named |= {f"{role}:x" for role in ("node", "subscriber") if f"own-{role}" in ROLES[row.pattern]}
    assert entries.keys() <= {"admin", *GROUPS, *GROUPS_OF_MEMBERS, *named}
    assert entries["admin"] == PERMISSIONS
    changers = {who for who, may in entries.items() if "a" in may}
    by_record = row in (table.journal, table.ack)
    assert changers == ({"admin", "master"} if by_record else {"admin"})
    assert all("r" in may for may in entries.values())
    own = {f"own-{role}" for role in NAMED} | {"primary-node", "replica-node", "own-member"}
    known = {*GROUPS, *NAMED, *own, "any-operator", "site-gateway"}
    assert ROLES[row.pattern] <= known


def test_viewers_add_audit_entries_and_change_nothing_else() -> None:
    for row in READ_BY_ALL:
        entries = dict(acl(filled(row.pattern), SECURED))
        assert entries["executor"] == "r", row.pattern
        assert entries["viewer"] == ("rc" if row is table.audits else "r"), row.pattern


def test_gateway_changes_leases_and_cursors_of_other_sites_alone() -> None:
    lists = {row.pattern: dict(acl(filled(row.pattern), SECURED)) for row in table.ROWS}
    changed = {name for name, entries in lists.items() if entries.get("gateway", "r") != "r"}
    breaks = "/breaks/{flow}"
    assert changed == {"/acks/{flow}", "/leases", "/breaks", breaks}
    assert {lists[name]["gateway"] for name in changed - {breaks}} == {"rc"}
    assert lists[breaks]["gateway"] == "rw"
    for own in ("/acks/web/main", f"/acks/web/job/{JOURNAL}", "/leases/web@job"):
        assert dict(acl(own, SECURED)).get("gateway", "r") == "r"
    assert dict(acl("/acks/web/nyc:copy", SECURED))["gateway"] == "rcd"
    assert dict(acl(f"/acks/web/nyc:copy/{JOURNAL}", SECURED))["gateway"] == "rw"
    assert dict(acl("/leases/web@nyc:copy", SECURED))["gateway"] == "rw"


def test_gateway_reads_what_it_serves_and_no_plans_or_sites() -> None:
    read = {r.pattern for r in table.ROWS if "gateway" in dict(acl(filled(r.pattern), SECURED))}
    assert read == {
        *("/schema", "/cluster", "/flows", "/flows/{flow}", "/flows/{flow}/revisions"),
        *("/flows/{flow}/revisions/{number}", "/acks", "/acks/{flow}", "/leases", "/nodes"),
        *("/acks/{flow}/{cursor}/{partition}", "/live", "/live/nodes", "/live/nodes/{node}"),
        *("/journals", "/journals/{journal}", "/breaks", "/breaks/{flow}"),
    }


def test_collector_writes_what_its_tasks_decide() -> None:
    for path in ("/acks/web/main/j", "/intents/web/collect.0", "/commits/web/collect.0@1"):
        assert dict(acl(path, SECURED))["collector"] == "rw", path


def test_member_named_in_a_path_has_rights_on_it_and_no_other_member_has() -> None:
    assert dict(acl("/nodes/n1/status", SECURED)).get("node:n1") == "rw"
    assert "node:n2" not in dict(acl("/nodes/n1/status", SECURED))
    assert dict(acl(f"/journals/{JOURNAL}", SECURED))["node:n1"] == "rw"
    assert dict(acl(f"/acks/web/main/{JOURNAL}", SECURED))["node:n1"] == "r"
    assert dict(acl(f"/acks/web/job/{JOURNAL}", SECURED))["subscriber:job"] == "rw"
    assert "subscriber:job" not in dict(acl(f"/acks/web/main/{JOURNAL}", SECURED))
    assert dict(acl(f"/acks/web/main/{JOURNAL}", SECURED))["@subscriber"] == "r"


def test_operator_may_change_plans_for_a_reset_or_a_moved_task() -> None:
    assert dict(acl("/flows/web/plan", SECURED))["@operator"] == "rwd"
    assert dict(acl("/flows/web/plan/0", SECURED))["@operator"] == "rw"


def named(pattern: str, flow: str) -> str:
    return filled(pattern.replace("{flow}", flow).replace("{cursor}", "main"))


@pytest.mark.parametrize("row", READ_BY_ALL, ids=lambda row: row.pattern)
def test_operator_of_some_flows_has_his_rights_on_their_paths_and_reads_others(
    row: table.Row[records.Record],
) -> None:
    """As the others of his role there, but that he removes no cursors and writes no tombstones,
    as a deletion of a flow does; and his commands are in the audit."""
    his = may(named(row.pattern, "web"), LIMITED, *OF_BOB)
    of_all = may(named(row.pattern, "web"), LIMITED, *OF_AL)
    for flow in ("web~errors", "app-2"):
        assert may(named(row.pattern, flow), LIMITED, *OF_BOB) == his
    expected = {table.audits: "rc", table.acks: "rc", table.tombstone: "r"}.get(
        row, of_all if "{flow}" in row.pattern else "r"
    )
    assert his == expected
    other = named(row.pattern, "other")
    assert may(other, LIMITED, *OF_BOB) == ("rc" if row is table.audits else "r")
    assert may(other, LIMITED, *OF_AL) == of_all, "and the others have all of it"


def test_journal_belongs_to_the_operators_of_its_flow() -> None:
    assert may(f"/journals/{JOURNAL}", LIMITED, *OF_BOB) == "rw"
    assert may("/journals/other.n1.0.aa", LIMITED, *OF_BOB) == "r"


def test_journal_record_is_read_by_nodes_with_copies_and_written_by_primary() -> None:
    """The node that has made it may write it too, under any primary."""
    secured = replace(SECURED, expelled=frozenset({"node:n9"}))
    led = replace(COPIED, primary="n2", replicas=("n2", "n3", "n9"))
    said = dict(acl(f"/journals/{JOURNAL}", secured, led))
    named = {who: what for who, what in said.items() if who.startswith("node:")}
    assert named == {"node:n1": "rw", "node:n2": "rw", "node:n3": "r"}
    ack = dict(acl(f"/acks/web/main/{JOURNAL}", secured, led))
    assert {who: what for who, what in ack.items() if who.startswith("node:")} == {
        "node:n1": "r",
        "node:n2": "r",
    }
    without = replace(led, lineage="")
    assert acl(f"/journals/{JOURNAL}", secured, without) == acl(f"/journals/{JOURNAL}", secured)


def test_cursor_belongs_to_the_flow_that_reads_with_it() -> None:
    """Not of the one whose journals it reads: to move it loses events of the reader."""
    assert may("/acks/other/web", LIMITED, *OF_BOB) == "rcd"
    assert may(f"/acks/other/web/{JOURNAL}", LIMITED, *OF_BOB) == "rw"
    for path in ("/acks/{}/{}", "/acks/{}/{}/x"):
        for cursor in ("other", "job"):
            assert may(path.format("web", cursor), LIMITED, *OF_BOB) == "r"


def test_operator_of_some_flows_needs_a_name_that_matches_as_a_whole() -> None:
    for flow in ("web2", "my-web", "app", "w", "x~web"):
        assert may(f"/flows/{flow}", LIMITED, *OF_BOB) == "r", flow


def test_expelled_name_is_in_no_access_list() -> None:
    secured = replace(SECURED, expelled=frozenset({"node:n9"}))
    for path in ("/nodes/n9/status", "/members/node:n9"):
        assert "node:n9" in dict(acl(path, SECURED))
        assert "node:n9" not in dict(acl(path, secured)), path


def test_unknown_path_is_read_only() -> None:
    assert {may for who, may in acl("/else", SECURED) if who != "admin"} == {"r"}


def secure(store: FakeStore, *admit: str, expel: tuple[str, ...] = (), cluster: str = "c") -> int:
    operator = Operator(store, "a", "r", 1.0)
    return secure_cluster(operator, cluster=cluster, admit=admit, expel=expel)


def test_existing_and_new_znodes_get_their_access_lists(store: FakeStore) -> None:
    assert secure(store, *ADMITTED) > 10
    store.write(paths.flow("web"), records.Flow(revision=1), ABSENT)
    said = store.tree.znodes["/flows/web"].access
    secured = Secured.of(tree.require(store))
    assert secured is not None
    assert said == access_lists.expected("/flows/web", secured)
    assert dict(said)[group(store, "operator")] == "rwcd"
    assert dict(said)[group(store, "node")] == "r"
    assert "x509:CN=operator:al,O=c" not in dict(said)
    assert secure(store) == 0, "it was not settled"


def test_member_admitted_again_has_the_flows_of_the_last_admission(store: FakeStore) -> None:
    """One entry for a name, replacing any earlier one."""
    secure(store, "operator:al")
    for flow in ("web", "app"):
        store.write(paths.flow(flow), records.Flow(revision=1), ABSENT)
    steps: list[tuple[tuple[str, ...], tuple[str, ...], list[str]]] = [
        ((f"{BOB}@web,app,web",), (f"{BOB}@app,web",), ["app", "web"]),
        ((f"{BOB}@app",), (f"{BOB}@app",), ["app"]),
        ((BOB,), (BOB,), ["app", "web"]),
        ((f"{BOB}@*",), (f"{BOB}@*",), ["app", "web"]),
        ((f"{BOB}@w*",), (f"{BOB}@w*",), ["web"]),
        ((), (), []),
    ]
    for admit, there, flows in steps:
        secure(store, *admit, expel=() if admit else (BOB,))
        assert tree.require(store).members == ("operator:al", *there)
        lists = {flow: dict(store.tree.znodes[f"/flows/{flow}"].access) for flow in ("app", "web")}
        own = {group(store, "operator")} & shown(store, BOB) | {f"x509:CN={BOB},O=c"}
        may = {
            flow: max((said.get(who, "") for who in own), key=len) for flow, said in lists.items()
        }
        assert [flow for flow in may if may[flow] == "rwcd"] == flows
        assert access_problems(store) == []


def test_access_lists_that_still_grant_a_flow_are_found_and_set(store: FakeStore) -> None:
    secure(store, f"{BOB}@web")
    store.write(paths.flow("web"), records.Flow(revision=1), ABSENT)
    schema = tree.require_versioned(store)
    store.write(paths.schema(), replace(schema.value, members=(f"{BOB}@app",)), schema.version)
    said = {problem.path: problem.what for problem in access_problems(store)}
    assert "looser: x509:CN=operator:bob,O=c may rwcd" in said["/flows/web"]
    assert secure(store) == len(said)
    assert access_problems(store) == []


@pytest.mark.parametrize(
    ("admit", "message"),
    [
        (["node:n1@web"], "only an operator is admitted for some flows"),
        (["subscriber:job@web"], "only an operator is admitted for some flows"),
        ([f"{BOB}@"], "'' is not a flow"),
        ([f"{BOB}@web,Web"], "'Web' is not a flow: expected 1 to 63 small letters"),
        ([f"{BOB}@web app"], "'web app' is not a flow"),
        ([f"{BOB}@[a-z]"], "is not a flow"),
        ([f"{BOB}@web~errors"], "'web~errors' is not a flow"),
        ([f"{BOB}@web@app"], "'web@app' is not a flow"),
        (["operator:@web"], "is not a member"),
        ([f"{BOB}@web", f"{BOB}@app"], "admitted twice, as operator:bob@web and as operator:bob@a"),
        ([f"{BOB}@web", BOB], "admitted twice"),
    ],
)
def test_invalid_flows_of_a_member_are_reported(
    store: FakeStore, admit: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        secure(store, *admit)
    assert tree.require(store).members == ()


def test_expulsion_from_single_flows_is_refused(store: FakeStore) -> None:
    secure(store, f"{BOB}@app,web")
    with pytest.raises(UserError, match="expel operator:bob, or admit it again with the flows"):
        secure(store, expel=(f"{BOB}@web",))
    assert tree.require(store).members == (f"{BOB}@app,web",)


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (BOB, "operator:bob may change only the flows app-*, web, and create or delete none"),
        ("operator:eve", "operator:eve is not admitted to this cluster; an administrator admits"),
        ("operator:al", "an operator may not change this; use the certificate of an administrator"),
        ("viewer", "a viewer may read everything and tap flows, but change nothing; use the"),
        ("collector", "the role collector may not change this"),
    ],
)
def test_refusal_names_the_role_and_its_rights(member: str, words: str) -> None:
    assert words in access_lists.refusal(member, LIMITED)


def test_refusal_without_identity_asks_for_another_credential() -> None:
    for member, secured in (("", LIMITED), ("viewer", None)):
        assert access_lists.refusal(member, secured) == access_lists.OTHER_CREDENTIAL


def test_member_that_would_be_locked_out_is_named(store: FakeStore) -> None:
    store.write(paths.live_node("n1"), LIVE, ABSENT)
    with pytest.raises(ConflictError, match=r"node n1 \(flumeng 1\) would be locked out"):
        secure(store)
    store.write(paths.live_node("n1"), replace(LIVE, identity="node:n1"), ANY)
    with pytest.raises(ConflictError, match="add --member node:n1"):
        secure(store)
    assert tree.require(store).features == ()
    secure(store, "node:n1")
    assert verify_cluster(store) == []


def test_expelled_node_is_not_live_any_more(store: FakeStore) -> None:
    secure(store, *ADMITTED)
    store.write(paths.live_node("n2"), replace(LIVE, identity="node:n2"), ABSENT)
    secure(store, expel=("node:n2",))
    assert store.children(paths.live_nodes()) == []
    assert "node:n2" not in store.children(paths.members())


def group(store: FakeStore, name: str) -> str:
    """The group's identity in access lists."""
    return f"digest:{tree.require(store).groups[name]}"


def shown(store: FakeStore, member: str) -> set[str]:
    """The identities that the member's record admits."""
    found = store.read(paths.member(member))
    groups = found.value.secrets.items() if found else ()
    return {f"digest:{access_lists.identity(name, one)}" for name, own in groups for one in own}


def entries_of(store: FakeStore) -> set[str]:
    """All identities in all access lists."""
    return {who for znode in store.tree.znodes.values() for who, _ in znode.access}


def test_member_can_read_the_secrets_of_its_groups_and_no_others(store: FakeStore) -> None:
    secure(store, *ADMITTED, f"{BOB}@web")
    own = {"node:n1": {"node"}, "subscriber:job": {"subscriber"}, BOB: {"any-operator"}}
    own["operator:al"] = {"operator", "any-operator"}
    for member, names in own.items():
        assert shown(store, member) == {group(store, name) for name in names}
        readers = dict(store.tree.znodes[f"/members/{member}"].access)
        assert readers == {"x509:CN=admin,O=c": "rwcda", f"x509:CN={member},O=c": "r"}
    assert dict(store.tree.znodes["/groups"].access) == {"x509:CN=admin,O=c": "rwcda"}


def test_access_lists_do_not_grow_with_members(store: FakeStore) -> None:
    secure(store, "node:n1", "subscriber:job")
    before = {path: len(znode.access) for path, znode in store.tree.znodes.items()}
    secure(store, *(f"node:n{number}" for number in range(2, 60)), "subscriber:job2")
    after = {path: len(store.tree.znodes[path].access) for path in before}
    assert after == before
    assert access_problems(store) == []


def test_admission_of_a_node_sets_no_other_access_lists(store: FakeStore) -> None:
    secure(store, *ADMITTED)
    assert secure(store, "node:n3", "subscriber:job2") == 0


class Counting(FakeStore):
    """Counts the requested znodes and names."""

    count = 0

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        self.count += 1
        return super().read(path)

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        self.count += len(wanted)
        return super().read_each(wanted)

    def children(self, path: Path) -> list[str]:
        found = super().children(path)
        self.count += 1 + len(found)
        return found

    def znodes(self) -> list[str]:
        found = super().znodes()
        self.count += len(found)
        return found

    def access_lists(self, znodes: Sequence[str]) -> list[AccessList | None]:
        self.count += len(znodes)
        return super().access_lists(znodes)

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        self.count += len(writes)
        return super().commit(writes)


def test_admission_costs_no_more_in_a_large_cluster(store: FakeStore) -> None:
    """Of members, live nodes, flows and journals nothing is read; all lists are right then."""
    nodes = [f"n{number}" for number in range(200)]
    secure(store, *(f"node:{node}" for node in nodes), f"{BOB}@web")
    for node in nodes:
        store.write(paths.node(node), records.Node(uuid="u", roles=()), ABSENT)
        store.write(paths.live_node(node), replace(LIVE, identity=f"node:{node}"), ABSENT)
        store.write(paths.flow(node), records.Flow(revision=1), ABSENT)
        journal = replace(COPIED, node=node, lineage="")
        store.write(paths.journal(f"web.{node}.0.0123abcd"), journal, ABSENT)
    for member in ("node:n200", "operator:eve", "subscriber:job"):
        counting = Counting(store.tree)
        assert secure(counting, member) == 0
        assert counting.count < 20, member
        assert shown(store, member) & entries_of(store)
        assert access_problems(store) == []


def test_expelled_member_admitted_again_gets_its_lists_again(store: FakeStore) -> None:
    secure(store, *ADMITTED)
    store.write(paths.node("n1"), records.Node(uuid="u", roles=()), ABSENT)
    secure(store, expel=("node:n1",))
    assert secure(store, "node:n1") > 0
    assert "x509:CN=node:n1,O=c" in dict(store.tree.znodes["/nodes/n1"].access)
    assert access_problems(store) == []


def test_admission_after_an_interrupted_expulsion_gives_the_secrets_again(store: FakeStore) -> None:
    secure(store, *ADMITTED)

    failing = ScriptedStore(store.tree, before_commit=fail(UnavailableError("cut"), when=removes))
    with pytest.raises(UnavailableError):
        secure(failing, expel=("node:n1",))
    secure(store, "node:n1")
    assert shown(store, "node:n1") == {group(store, "node")}
    assert access_problems(store) == []


@pytest.mark.parametrize("gone", ["node:n1", "operator:al", "subscriber:job"])
def test_expelled_member_knows_no_secret_of_any_list(store: FakeStore, gone: str) -> None:
    secure(store, *ADMITTED, "operator:eve", "subscriber:job2")
    store.write(paths.node("n1"), records.Node(uuid="u", roles=()), ABSENT)
    known = shown(store, gone)
    secure(store, expel=(gone,))
    assert known.isdisjoint(entries_of(store))
    assert f"x509:CN={gone},O=c" not in entries_of(store)
    assert store.read(paths.member(gone)) is None
    for member in {*ADMITTED, "operator:eve", "subscriber:job2"} - {gone}:
        assert shown(store, member) & entries_of(store)
    assert access_problems(store) == []


def test_limited_operator_loses_the_secret_of_all_operators(store: FakeStore) -> None:
    secure(store, *ADMITTED, BOB)
    before = shown(store, BOB) - {group(store, "any-operator")}
    secure(store, f"{BOB}@web")
    assert before.isdisjoint(entries_of(store))
    assert group(store, "operator") in shown(store, "operator:al")


def test_interrupted_expulsion_is_completed(store: FakeStore) -> None:
    secure(store, *ADMITTED)
    known = shown(store, "node:n1")

    class Failing(FakeStore):
        def set_access_lists(self, _wanted: Mapping[str, AccessList]) -> int:
            raise UnavailableError("cut")

    with pytest.raises(UnavailableError):
        secure(Failing(store.tree), expel=("node:n1",))
    assert shown(store, "node:n2") & entries_of(store), "the members that stay read on meanwhile"
    secure(store, expel=("node:n1",))
    assert known.isdisjoint(entries_of(store))


def test_export_has_no_secret_and_its_import_has_new_ones(store: FakeStore) -> None:
    secure(store, *ADMITTED)
    text = json.dumps(export_cluster(store))
    before = store.read(paths.groups())
    assert before is not None
    assert not [one for own in before.value.secrets.values() for one in own if one in text]
    other = FakeStore()
    import_cluster(Operator(other, "a", "", 1.0), json.loads(text))
    assert set(other.children(paths.members())) == {*ADMITTED}
    assert shown(other, "node:n1") == {group(other, "node")} != {group(store, "node")}
    assert set_access(other) > 0 or access_problems(other) == []


@pytest.mark.slow
def test_flows_and_members_of_a_large_secured_cluster_fit() -> None:
    """20,000 members: no request to ZooKeeper is larger than it takes."""
    store = new_cluster()
    secure(store, *(f"node:ingest-{number:05}.fra1.example.net" for number in range(20_000)))
    texts = {
        f"f{number}": f"flow: f{number}\nsources: [generate: {{}}]\nsinks: [noop]\n"
        for number in range(200)
    }
    made = apply_flows(Operator(store, "a", "", 1.0), texts)
    assert sum(one.changed for part in made for one in part) == 200
    assert secure(store, "node:one-more") == 0


@pytest.mark.parametrize("member", ["node", "node:", "master:m", "admin", "node:a b", "x:y"])
def test_only_names_of_nodes_operators_and_subscribers_are_members(
    store: FakeStore, member: str
) -> None:
    with pytest.raises(UserError, match="is not a member"):
        secure(store, member)


@pytest.mark.long
def test_certificates_of_another_cluster_do_not_take_over_this_one(store: FakeStore) -> None:
    secure(store)
    with pytest.raises(UserError, match="certificates name this cluster c, not other"):
        secure(store, cluster="other")


GATEWAY_RIGHTS = {
    "/breaks": "rc",
    "/breaks/{flow}": "rw",
    "/acks/{flow}": "rc",
    "/acks/{flow}/{cursor}": "rcd",
    "/acks/{flow}/{cursor}/{partition}": "rw",
    "/leases": "rc",
    "/leases/{flow}@{cursor}": "rw",
}
"""Those of a path with a cursor hold for cursors of other sites alone."""


@pytest.mark.parametrize("cursor", ["nyc:copy", "report", "main"])
def test_rights_of_gateways_stop_at_leases_of_other_sites(cursor: str) -> None:
    names = {"{cursor}": cursor, "{partition}": "web.n1.0.0a1b2c3d"}
    changed: dict[str, str] = {}
    for row in table.ROWS:
        path = table.PLACEHOLDER.sub(lambda match: names.get(match.group(), "x"), row.pattern)
        rights = dict(acl(path, Secured("c"))).get("gateway", "")
        if set(rights) - {"r"}:
            changed[row.pattern] = rights
    own = ":" in cursor
    expected = {path: may for path, may in GATEWAY_RIGHTS.items() if own or "{cursor}" not in path}
    assert changed == expected
