"""A ZooKeeper that admits certificates only: the rights and refusals of each role there."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from kazoo.exceptions import NoAuthError

from cli.main import tree as commands
from flumeng.control.commands.acks import reset_acks
from flumeng.control.commands.cluster import verify_cluster
from flumeng.control.commands.flows import (
    apply_flow,
    delete_flow,
    keep_tap,
    rollback_flow,
    set_flow_state,
)
from flumeng.control.commands.operator import Operator, audit_entry
from flumeng.control.commands.queues import decide
from flumeng.control.commands.securing import acl_mismatches, secure_cluster, set_access
from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import ABSENT, ANY, AccessList, AccessStore, Put, Store, tree
from flumeng.control.zookeeper import Path as ZnodePath
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore, connect
from flumeng.control.zookeeper.tls import speaks_tls
from flumeng.control.zookeeper.transaction import OPEN
from flumeng.platform.errors import ConflictError, FlumengError, ForbiddenError, UnavailableError
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.roles import DIRECTORY, Role
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.cluster import add_journal
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for
from tests.testkit.zookeeper import RealEnsemble
from zkschema import bootstrap, paths, records
from zkschema.access import SECURED

JOURNAL = "web.n1.0.0123abcd"
ACK = paths.ack("web", "main", JOURNAL)
COPIED = records.Journal(
    flow="web", node="n1", primary="n1", term=2, in_sync=("n2/b",), replicas=("n1",), lineage="l"
)
ENTRY = records.Audit(who="eve", command="flow stop web", reason="", time=1.0)
LIVE = records.LiveNode(
    uuid="u", incarnation="i", pid=1, version="1", since=1.0, identity="node:n1"
)
OTHER_ACK = paths.ack("other", "main", "other.n1.0.0123abcd")
FAILURE = records.QueueFailure(
    location="/in/a", size=7, modified=5, position=3, why="bits", time=1.0
)
NEW_FLOW = "{flow: new, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop]}"
Opener = Callable[..., Store]


SAID = ("test", "", 1.0)


class Sessions:
    """Sessions in one chroot of a server, each with the certificate of one role."""

    def __init__(
        self, hosts: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.hosts = hosts
        self.opened: list[Store] = []
        self._certificates = certificates
        self._environment = monkeypatch

    def of(self, role: Role, name: str = "n1", hosts: str = "") -> Store:
        return self.at(self._certificates.folder(role, name=name), role, hosts=hosts)

    def at(self, folder: Path | None, role: Role, hosts: str = "") -> Store:
        if folder is None:
            self._environment.delenv(DIRECTORY, raising=False)
        else:
            self._environment.setenv(DIRECTORY, str(folder))
        store = connect(hosts or self.hosts, session_seconds=4, wait_seconds=4, roles=[role])
        self.opened.append(store)
        return store


@pytest.fixture
def sessions(
    secure_zookeeper: RealZooKeeper, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sessions]:
    hosts = f"{secure_zookeeper.address}/{uuid.uuid4().hex[:12]}"
    sessions = Sessions(hosts, certificates, monkeypatch)
    yield sessions
    for store in sessions.opened:
        store.close()


@pytest.fixture
def admin(sessions: Sessions) -> Store:
    """The administrator's session of a secured cluster with one flow, one node and one operator."""
    admin = sessions.of("admin", "root")
    tree.init(admin)
    secure(admin, admit=["node:n1", "node:n2", "operator:al", "subscriber:job"])
    wait_for(lambda: not acl_mismatches(admin, admin.dump()))
    operator, master = sessions.of("operator", "al"), sessions.of("master")
    operator.write(paths.flow("web"), records.Flow(revision=1), ABSENT)
    for folder in bootstrap.flow_folders("web"):
        operator.write(folder, None, ABSENT)
    text = records.Revision(text="name: web", author="al", reason="", time=1.0)
    operator.write(paths.revision("web", "1"), text, ABSENT)
    operator.commit([audit_entry(ENTRY)])
    for name in ("n1", "n2"):
        node = sessions.of("node", name)
        node.write(paths.node(name), records.Node(uuid=name, roles=("ingest",)), ABSENT)
        node.write(paths.status(name), records.NodeStatus(assignment_version=0), ABSENT)
        node.write(paths.live_node(name), LIVE, ABSENT)
        master.write(paths.assignment(name), records.Assignment(), ABSENT)
    master.write(paths.plan("web"), records.Plan(epoch=1), ABSENT)
    add_journal(sessions.of("node"), JOURNAL)
    sessions.of("collector").write(ACK, records.Ack(epoch=1, offset=5), ABSENT)
    sessions.of("discovery").write(paths.partitions("web"), records.Partitions(), ABSENT)
    return admin


def secure(store: Store, admit: Sequence[str] = (), expel: Sequence[str] = ()) -> int:
    return secure_cluster(
        Operator(store, "test", "", 1.0), cluster=CLUSTER, admit=admit, expel=expel
    )


def answers(store: Store) -> bool:
    try:
        return store.exists(paths.flows())
    except UnavailableError:
        return False


def forbidden(store: Store, path: ZnodePath, value: records.Record | None) -> None:
    with pytest.raises(ForbiddenError, match="NoAuthError"):
        store.write(path, value, ANY)


def test_znodes_created_by_roles_have_the_access_list_of_their_path(admin: Store) -> None:
    """The fixture was written by all roles: nothing that they made is looser than it may be."""
    assert acl_mismatches(admin, admin.dump()) == []
    assert verify_cluster(admin) == []


@pytest.mark.parametrize("role", ["master", "node", "discovery", "collector", "viewer", "operator"])
def test_every_role_reads_the_znodes_it_needs(admin: Store, sessions: Sessions, role: Role) -> None:
    assert admin.connected
    reader = sessions.of(role, "n1" if role == "node" else "al")
    assert reader.read(paths.cluster()) is not None
    assert reader.read(paths.flow("web")) is not None
    assert reader.children(paths.live_nodes()) == ["n1", "n2"]
    assert reader.read(paths.assignment("n1")) is not None
    assert reader.read(ACK) is not None


def test_node_does_its_own_work_and_no_other(admin: Store, sessions: Sessions) -> None:
    node = sessions.of("node", "n2")
    own = records.NodeStatus(assignment_version=3)
    node.write(paths.status("n2"), own, ANY)
    node.write(paths.live_node("n2"), replace(LIVE, pid=2), ANY)
    forbidden(node, paths.status("n1"), own)
    forbidden(node, paths.assignment("n1"), records.Assignment())
    forbidden(node, paths.assignment("n2"), records.Assignment())
    forbidden(node, paths.node("n1"), records.Node(uuid="eve", roles=("collect",)))
    forbidden(node, paths.live_node("n1"), LIVE)
    forbidden(node, paths.story("n1"), records.Story())
    forbidden(node, paths.plan("web"), records.Plan(epoch=9))
    forbidden(node, ACK, records.Ack(epoch=9, offset=9999))
    forbidden(node, paths.ack("web", "main", "web.n2.0.00"), records.Ack(epoch=9, offset=1))
    forbidden(node, paths.journal(JOURNAL), admin.read(paths.journal(JOURNAL)).value)  # type: ignore[union-attr]
    for path in (ACK, paths.live_node("n1"), paths.node("n1"), paths.status("n1")):
        with pytest.raises(ForbiddenError):
            node.remove(path, ANY)


def test_node_with_a_copy_reads_the_record_and_only_the_primary_writes_it(
    admin: Store, sessions: Sessions
) -> None:
    """Neither changes a list: the masters do, of journals and their acks alone."""
    path, record = paths.journal(JOURNAL), replace(COPIED, primary="n2", replicas=("n2", "n3"))
    secure(admin, admit=["node:n3", "node:n4"])
    n2, n3, n4 = (sessions.of("node", name) for name in ("n2", "n3", "n4"))
    master = sessions.of("master")
    master.write(path, record, ANY)
    with pytest.raises(ForbiddenError):
        n2.read(path)
    looking_after(master)
    assert [n.read(path).value for n in (n2, n3)] == [record, record]  # type: ignore[union-attr]
    assert n2.read(ACK) is not None
    with pytest.raises(ForbiddenError):
        n4.read(path)
    with pytest.raises(ForbiddenError):
        n3.read(ACK)
    forbidden(n3, path, replace(record, primary="n3"))
    n2.write(path, replace(record, term=3), ANY)
    for node in (n2, n3):
        assert isinstance(node, AccessStore)
        with pytest.raises(ForbiddenError):
            node.set_access_lists({str(path): OPEN})
    assert isinstance(master, AccessStore)
    for other in (paths.flow("web"), paths.node("n1"), paths.assignment("n1"), paths.schema()):
        with pytest.raises(ForbiddenError):
            master.set_access_lists({str(other): OPEN})
    master.write(path, replace(record, term=4, primary="n3", replicas=("n3",)), ANY)
    looking_after(master)
    n3.write(path, replace(record, term=5, primary="n3", replicas=("n3",)), ANY)
    with pytest.raises(ForbiddenError):
        n2.read(path)
    assert acl_mismatches(admin, admin.dump()) == []


def looking_after(master: Store) -> None:
    """One turn of a master that owns all flows."""
    assert "cannot" not in Master(master, "m1").tick()


def test_collector_moves_acks_and_changes_no_plan(admin: Store, sessions: Sessions) -> None:
    collector = sessions.of("collector")
    collector.write(ACK, records.Ack(epoch=1, offset=6), ANY)
    forbidden(collector, paths.plan("web"), records.Plan(epoch=9))
    forbidden(collector, paths.assignment("n1"), records.Assignment())
    forbidden(collector, paths.flow("web"), records.Flow(revision=2))
    forbidden(collector, paths.cluster(), records.Cluster())
    assert admin.read(ACK).value.offset == 6  # type: ignore[union-attr]


def test_gateway_keeps_leases_of_other_sites_and_changes_nothing_else(
    admin: Store, sessions: Sessions
) -> None:
    gateway = sessions.of("gateway", "gw1")
    lease = records.Lease(holder="h", reader="r", keep_seconds=1.0, renewed=1.0)
    folder, own = paths.cursor("web", "nyc:copy"), paths.ack("web", "nyc:copy", JOURNAL)
    gateway.commit([Put(folder, None, ABSENT), Put(paths.lease("web", "nyc:copy"), lease, ABSENT)])
    gateway.write(own, records.Ack(epoch=0, offset=1), ABSENT)
    gateway.write(own, records.Ack(epoch=0, offset=2), ANY)
    gateway.write(paths.lease("web", "nyc:copy"), replace(lease, renewed=2.0), ANY)
    gateway.remove(own, ANY)
    assert gateway.read(ACK).value.offset == 5  # type: ignore[union-attr]
    assert acl_mismatches(admin, admin.dump()) == []
    job = sessions.of("subscriber", "job")
    job.commit(
        [
            Put(paths.cursor("web", "job"), None, ABSENT),
            Put(paths.lease("web", "job"), lease, ABSENT),
        ]
    )
    forbidden(gateway, paths.lease("web", "job"), replace(lease, keep_seconds=0.0))
    forbidden(gateway, paths.ack("web", "job", JOURNAL), records.Ack(epoch=0, offset=9))
    forbidden(gateway, ACK, records.Ack(epoch=9, offset=9999))
    forbidden(gateway, paths.cluster(), records.Cluster(site="eve"))
    forbidden(gateway, paths.flow("web"), records.Flow(revision=9))
    forbidden(gateway, paths.flow("eve"), records.Flow(revision=1))
    forbidden(gateway, paths.journal(JOURNAL), COPIED)
    forbidden(gateway, paths.live_node("n1"), LIVE)
    forbidden(gateway, paths.live_node("gw2"), LIVE)
    forbidden(gateway, paths.status("n1"), records.NodeStatus(assignment_version=9))
    forbidden(gateway, paths.plan("web"), records.Plan(epoch=9))
    for path in (ACK, paths.lease("web", "job"), paths.lease("web", "nyc:copy"), folder):
        with pytest.raises(ForbiddenError):
            gateway.remove(path, ANY)
    for path in (paths.plan("web"), paths.assignment("n1"), paths.partitions("web")):
        with pytest.raises(ForbiddenError):
            gateway.read(path)
    with pytest.raises(ForbiddenError):
        gateway.children(paths.audits())


def test_gateway_has_its_rights_once_access_lists_are_those_of_this_version(
    admin: Store, sessions: Sessions
) -> None:
    assert isinstance(admin, AccessStore)
    znodes = ["/", *admin.znodes()]
    lists = dict(zip(znodes, admin.access_lists(znodes), strict=True))
    admin.set_access_lists(
        {
            path: tuple(entry for entry in entries if "CN=gateway" not in entry[0])
            for path, entries in lists.items()
            if entries is not None
        }
    )
    with pytest.raises(ForbiddenError, match="schema verify --fix"):
        sessions.of("gateway")
    assert set_access(admin) > 10
    assert sessions.of("gateway").read(paths.cluster()) is not None


def test_collector_keeps_no_leases_of_other_sites(admin: Store, sessions: Sessions) -> None:
    assert admin.connected
    collector = sessions.of("collector")
    lease = records.Lease(holder="h", reader="r", keep_seconds=1.0, renewed=1.0)
    forbidden(collector, paths.lease("web", "nyc:copy"), lease)
    forbidden(collector, paths.cursor("web", "nyc:copy"), None)


def test_only_masters_remove_audit_entries_and_no_role_changes_them(
    admin: Store, sessions: Sessions
) -> None:
    (name,) = [
        one for one in admin.children(paths.audits()) if "eve" in str(admin.read(paths.audit(one)))
    ]
    roles: list[Role] = ["operator", "node", "collector", "discovery", "viewer"]
    for role in roles:
        store = sessions.of(role, "n1" if role == "node" else "al")
        forbidden(store, paths.audit(name), ENTRY)
        with pytest.raises(ForbiddenError):
            store.remove(paths.audit(name), ANY)
    master = sessions.of("master")
    forbidden(master, paths.audit(name), ENTRY)
    master.remove(paths.audit(name), ANY)


def test_operator_changes_flows_and_no_records_of_masters_and_nodes(
    admin: Store, sessions: Sessions
) -> None:
    """A plan he changes as a reset and a restart of a task do: under a higher epoch."""
    store = sessions.of("operator", "al")
    operator = Operator(store, *SAID)
    operator.commit([Put(paths.cluster(), records.Cluster(grace_seconds=5), ANY)], "cluster set")
    set_flow_state(operator, "web", "stopped")
    assert [one.after for one in reset_acks(operator, "web", {JOURNAL: 2})] == [2]
    assert admin.read(paths.plan("web")).value.epoch == 2  # type: ignore[union-attr]
    forbidden(store, paths.assignment("n1"), records.Assignment())
    forbidden(store, paths.schema(), admin.read(paths.schema()).value)  # type: ignore[union-attr]


def two_flows(admin: Store, sessions: Sessions) -> tuple[Store, Store]:
    """Flows ``web`` and ``other`` with one failed item each; sessions of an operator of all flows
    and of one of ``web``."""
    secure(admin, admit=["operator:bob@web"])
    operator = sessions.of("operator", "al")
    operator.write(paths.flow("other"), records.Flow(revision=1), ABSENT)
    for folder in bootstrap.flow_folders("other"):
        operator.write(folder, None, ABSENT)
    sessions.of("collector").write(OTHER_ACK, records.Ack(epoch=1, offset=5), ABSENT)
    discovery = sessions.of("discovery")
    for flow in ("web", "other"):
        discovery.write(paths.queue(flow), records.Queue(epoch=1), ABSENT)
        discovery.write(paths.queue_failures(flow), None, ABSENT)
        discovery.write(paths.queue_failure(flow, "0.1"), FAILURE, ABSENT)
    return operator, sessions.of("operator", "bob")


def test_operator_of_some_flows_changes_these_and_is_audited_with_them(
    admin: Store, sessions: Sessions
) -> None:
    operator, bob = two_flows(admin, sessions)
    apply_flow(Operator(operator, *SAID), NEW_FLOW)
    secure(admin, admit=["operator:bob@web,new"])
    entries = len(admin.children(paths.audits()))
    set_flow_state(Operator(bob, *SAID), "web", "stopped")
    assert [one.after for one in reset_acks(Operator(bob, *SAID), "web", {JOURNAL: 2})] == [2]
    assert decide(Operator(bob, *SAID), "web", [], "retry") == ["0.1"]
    assert apply_flow(Operator(bob, *SAID), f"{NEW_FLOW} # changed").revision == 2
    assert rollback_flow(Operator(bob, *SAID), "new", 1).revision == 3
    assert admin.read(ACK).value.offset == 2  # type: ignore[union-attr]
    assert len(admin.children(paths.audits())) == entries + 5
    assert not bob.expelled, "he reads who belongs here before each write"  # type: ignore[attr-defined]
    assert acl_mismatches(admin, admin.dump()) == []


def test_operator_of_some_flows_changes_creates_and_deletes_no_others(
    admin: Store, sessions: Sessions
) -> None:
    """Asked by his own client, and by ZooKeeper's without anything of ours between."""
    operator, bob = two_flows(admin, sessions)
    refused = pytest.raises(ForbiddenError, match="operator:bob may change only the flows web, and")
    for attempt in (
        lambda: set_flow_state(Operator(bob, *SAID), "other", "stopped"),
        lambda: decide(Operator(bob, *SAID), "other", [], "retry"),
        lambda: delete_flow(Operator(bob, *SAID), "web"),
        lambda: apply_flow(Operator(bob, *SAID), NEW_FLOW),
        lambda: bob.write(paths.cluster(), records.Cluster(grace_seconds=5), ANY),
        lambda: bob.write(OTHER_ACK, records.Ack(epoch=1, offset=9), ANY),
        lambda: bob.write(paths.node("n1"), records.Node(uuid="n1", roles=()), ANY),
    ):
        with refused:
            attempt()
    client = bob._client  # type: ignore[attr-defined]
    with pytest.raises(NoAuthError):
        client.create("/x", b"")
    for path in sorted(admin.dump()):
        own = "web" in path.split("/") or path.startswith("/journals/web.")
        if not own and path != "/audit":
            with pytest.raises(NoAuthError):
                client.set(path, b"")
            with pytest.raises(NoAuthError):
                client.create(f"{path}/x", b"")
        if "web" not in path.rpartition("/")[0].split("/"):
            with pytest.raises(NoAuthError):
                client.delete(path)
    set_flow_state(Operator(operator, *SAID), "other", "stopped")
    assert decide(Operator(operator, *SAID), "other", [], "retry") == ["0.1"]
    assert delete_flow(Operator(operator, *SAID), "other")
    apply_flow(Operator(operator, *SAID), NEW_FLOW)


def test_flows_of_an_operator_change_in_the_middle_of_his_session(
    admin: Store, sessions: Sessions
) -> None:
    _, bob = two_flows(admin, sessions)
    secure(admin, admit=["operator:bob@oth*"])
    set_flow_state(Operator(bob, *SAID), "other", "stopped")
    forbidden(bob, paths.flow("web"), records.Flow(revision=2))
    secure(admin, admit=["operator:bob"])
    set_flow_state(Operator(bob, *SAID), "web", "stopped")
    bob.write(paths.cluster(), records.Cluster(grace_seconds=5), ANY)
    secure(admin, admit=["operator:bob@web"])
    forbidden(bob, paths.cluster(), records.Cluster())
    secure(admin, expel=["operator:bob"])
    with pytest.raises(ForbiddenError):
        bob.read(paths.flow("web"))
    assert acl_mismatches(admin, admin.dump()) == []


def test_refused_command_for_a_foreign_flow_lists_the_operators_flows(
    admin: Store, sessions: Sessions
) -> None:
    two_flows(admin, sessions)
    said = CliRunner().invoke(commands, ["flow", "stop", "other", "--zk", sessions.hosts])
    assert (said.exit_code, said.stderr) == (
        6,
        "flumeng: /flows/other: ZooKeeper refuses it (NoAuthError): operator:bob may change only "
        "the flows web, and create or delete none\n",
    )
    said = CliRunner().invoke(commands, ["flow", "stop", "web", "--zk", sessions.hosts])
    assert (said.exit_code, said.stderr) == (0, "")


def test_viewer_is_refused_with_an_exit_code_of_its_own(admin: Store, sessions: Sessions) -> None:
    assert admin.connected
    sessions.of("viewer")
    said = CliRunner().invoke(commands, ["flow", "pause", "web", "--zk", sessions.hosts])
    assert said.exit_code == 6
    assert "a viewer may read everything and tap flows, but change nothing" in said.stderr


def test_viewer_adds_its_taps_to_the_audit_and_changes_no_entry(
    admin: Store, sessions: Sessions
) -> None:
    viewer = sessions.of("viewer")
    before = admin.children(paths.audits())
    keep_tap(Operator(viewer, *SAID), "web", at=None, where=None)
    (added,) = set(admin.children(paths.audits())) - set(before)
    entry = admin.read(paths.audit(added))
    assert entry is not None
    assert entry.value.command == "flow tap web"
    for name in (added, *before):
        with pytest.raises(ForbiddenError):
            viewer.remove(paths.audit(name), ANY)
        forbidden(viewer, paths.audit(name), ENTRY)


def test_a_viewer_writes_nothing(admin: Store, sessions: Sessions) -> None:
    viewer = sessions.of("viewer")
    for path in admin.dump():
        if path.count("/") == 1:
            with pytest.raises(NoAuthError):
                viewer._client.set(path, b"")  # type: ignore[attr-defined]


def test_a_subscriber_moves_the_cursor_of_its_name_only(admin: Store, sessions: Sessions) -> None:
    assert admin.connected
    job = sessions.of("subscriber", "job")
    lease = records.Lease(holder="h", reader="r", keep_seconds=1.0, renewed=1.0)
    folder, own = paths.cursor("web", "job"), paths.ack("web", "job", JOURNAL)
    job.commit([Put(folder, None, ABSENT), Put(paths.lease("web", "job"), lease, ABSENT)])
    job.write(own, records.Ack(epoch=0, offset=1), ABSENT)
    job.write(own, records.Ack(epoch=0, offset=2), ANY)
    forbidden(job, ACK, records.Ack(epoch=1, offset=9))


def test_member_that_was_not_admitted_is_refused_and_has_no_rights(
    admin: Store, sessions: Sessions
) -> None:
    assert admin.connected
    with pytest.raises(ForbiddenError, match="schema secure --member"):
        sessions.of("node", "n9")
    with pytest.raises(ForbiddenError, match="schema secure --member"):
        sessions.of("operator", "eve")


def test_expelled_node_is_out_at_once_and_may_be_admitted_again(
    admin: Store, sessions: Sessions
) -> None:
    """Also in a session that got no notice of the second."""
    node = sessions.of("node", "n2")
    node.write(paths.status("n2"), records.NodeStatus(assignment_version=3), ANY)
    secure(admin, expel=["node:n2"])
    assert admin.children(paths.live_nodes()) == ["n1"]
    with pytest.raises(ForbiddenError):
        node.read(paths.cluster())
    forbidden(node, paths.live_node("n2"), LIVE)
    forbidden(node, paths.status("n2"), records.NodeStatus(assignment_version=4))
    secure(admin, admit=["node:n2"])
    node.write(paths.live_node("n2"), LIVE, ABSENT)
    node.write(paths.live_node("n2"), replace(LIVE, pid=3), ANY)
    assert acl_mismatches(admin, admin.dump()) == []


def refusal(sessions: Sessions, folder: Path | None, hosts: str = "") -> str:
    started = time.monotonic()
    with pytest.raises(FlumengError) as refused:
        sessions.at(folder, "admin", hosts)
    assert time.monotonic() - started < 12, "it tried in silence"
    return str(refused.value)


def answer_to(keystore: Keystore | None, port: int) -> bytes:
    """The server's answer over TLS to a client with this certificate, or without one."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if keystore is not None:
        context.load_cert_chain(keystore.certificate, keystore.key)
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            stranger = context.wrap_socket(connection)
            stranger.sendall(b"srvr")
            return stranger.recv(100)
    except OSError:
        return b""


def test_client_without_a_certificate_is_refused(
    secure_zookeeper: RealZooKeeper, sessions: Sessions
) -> None:
    assert "accepts only TLS" in refusal(sessions, None)
    assert answer_to(None, secure_zookeeper.port) == b""


def test_the_certificate_of_another_authority_is_refused(
    certificates: Certificates, sessions: Sessions, tmp_path: Path
) -> None:
    folder = Certificates(tmp_path).folder("admin", name="root")
    assert "no authority in" in refusal(sessions, folder)
    Keystore(folder, "admin").ca.write_bytes(certificates.authority.pem)
    assert "refuses the certificate" in refusal(sessions, folder)


def test_expired_certificate_is_reported_by_the_client_and_refused_by_the_server(
    certificates: Certificates, sessions: Sessions, secure_zookeeper: RealZooKeeper
) -> None:
    valid = Keystore(certificates.folder("admin", name="root"), "admin")
    assert answer_to(valid, secure_zookeeper.port)
    folder = certificates.folder("admin", name="late", days=-0.001)
    assert "expired on" in refusal(sessions, folder)
    assert answer_to(Keystore(folder, "admin"), secure_zookeeper.port) == b""


def test_a_server_for_another_host_is_not_trusted(
    certificates: Certificates, sessions: Sessions, tmp_path: Path
) -> None:
    folder = certificates.folder("zookeeper", name="zk2", hosts=["zk2.example.com"])
    server = RealZooKeeper(tmp_path, folder)
    server.start()
    try:
        said = refusal(sessions, certificates.folder("admin"), f"{server.address}/c")
        assert "has a certificate for another host" in said
    finally:
        server.kill()


def test_tls_connection_to_a_plain_port_is_reported(
    certificates: Certificates, sessions: Sessions, zookeeper: str
) -> None:
    said = refusal(sessions, certificates.folder("admin"), f"{zookeeper}/c")
    assert "does not speak TLS" in said


def test_replaced_certificate_is_used_from_the_next_connection_on(
    certificates: Certificates, sessions: Sessions, secure_zookeeper: RealZooKeeper
) -> None:
    """Also after one that does not fit was there for a while."""
    folder = certificates.folder("admin", name="root")
    store = sessions.at(folder, "admin")
    assert isinstance(store, ZooKeeperStore)
    certificates.folder("admin", name="root", days=-0.001)
    store._client._connection._socket.shutdown(2)
    wait_for(lambda: "expired on" in store.trouble)
    assert not store.connected
    certificates.folder("admin", name="root", days=2)
    wait_for(lambda: store.connected)
    tree.init(store)
    assert secure_zookeeper.process is not None


@pytest.mark.long
def test_client_connects_to_a_secure_server_whose_data_was_wiped(
    certificates: Certificates, sessions: Sessions, tmp_path: Path
) -> None:
    server = RealZooKeeper(tmp_path / "lost", certificates.folder("zookeeper"))
    server.start()
    try:
        store = sessions.of("admin", hosts=f"{server.address}/c")
        tree.init(store)
        server.kill()
        shutil.rmtree(server.data)
        server.start()
        wait_for(lambda: store.connected)
        assert not store.exists(paths.schema())
    finally:
        server.kill()


@pytest.fixture
def both(certificates: Certificates, tmp_path: Path) -> Iterator[RealZooKeeper]:
    """A cluster with a secure and a plain port that is moved to the secure one."""
    folder = certificates.folder("zookeeper", name="zk1")
    server = RealZooKeeper(tmp_path / "zookeeper", folder, plain=True)
    server.start()
    yield server
    server.kill()


class Writer(threading.Thread):
    """A process that goes on creating znodes while its cluster is secured."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.written = 0
        self.failed: list[Exception] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.002):
            path = paths.ack("web", "main", f"web.n1.0.{self.written:08x}")
            try:
                self.store.write(path, records.Ack(epoch=1, offset=1), ABSENT)
            except FlumengError as error:
                self.failed.append(error)
            else:
                self.written += 1

    def end(self) -> None:
        self.ended.set()
        self.join(20)


def test_open_cluster_is_secured_while_it_works(
    both: RealZooKeeper, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients without an identity are not locked out but named. Znodes that are created meanwhile,
    also by a client that learns late, have their lists; a client over the plain port has no rights
    then."""
    secure_hosts, plain_hosts = (f"127.0.0.1:{p}/c" for p in (both.port, both.plain_port))
    sessions = Sessions(secure_hosts, certificates, monkeypatch)
    old = sessions.at(None, "admin", plain_hosts)
    tree.init(old)
    old.write(paths.flow("web"), records.Flow(revision=1), ABSENT)
    for folder in bootstrap.flow_folders("web"):
        old.write(folder, None, ABSENT)
    master = records.LiveMaster(host="h", pid=1, version="1", since=1.0)
    old.write(paths.live_master("m1"), master, ABSENT)
    admin = sessions.of("admin", "root")
    with pytest.raises(ConflictError, match=r"master m1 .* would be locked out"):
        secure(admin)
    assert SECURED not in tree.require(admin).features

    old.remove(paths.live_master("m1"), ANY)
    master = replace(master, identity="master")
    sessions.of("master").write(paths.live_master("m1"), master, ABSENT)
    node = sessions.of("node")
    node.write(paths.live_node("n1"), LIVE, ABSENT)
    with pytest.raises(ConflictError, match="add --member node:n1"):
        secure(admin)

    writer = Writer(sessions.of("collector"))
    writer.start()
    wait_for(lambda: writer.written > 20)
    secure(admin, admit=["node:n1"])
    before = writer.written
    wait_for(lambda: writer.written > before + 20)
    writer.end()
    assert writer.failed == []
    assert acl_mismatches(admin, admin.dump()) == []
    with pytest.raises(ForbiddenError):
        old.read(paths.cluster())
    forbidden(old, paths.flow("web"), records.Flow(revision=2))
    for store in sessions.opened:
        store.close()


class CrashError(Exception):
    pass


class CrashingStore(ZooKeeperStore):
    """The store of a process that ends when it has set half of the lists."""

    def set_access_lists(self, lists: Mapping[str, AccessList]) -> int:
        super().set_access_lists(dict(list(lists.items())[: len(lists) // 2]))
        raise CrashError


def test_interrupted_securing_is_continued(sessions: Sessions) -> None:
    """After any part of the lists: verify names the rest, and the next call sets it."""
    admin = sessions.of("admin", "root")
    tree.init(admin)
    crashing = CrashingStore(sessions.hosts, session_seconds=4, roles=["admin"])
    sessions.opened.append(crashing)
    assert crashing.wait_connected(4)
    with pytest.raises(CrashError):
        secure(crashing)
    left = [problem for problem in verify_cluster(admin) if "looser: world:anyone" in problem.what]
    assert left, "half of the lists were not set, and nobody says so"
    assert secure(admin) == len(left)
    assert verify_cluster(admin) == []


def test_nothing_is_created_open_while_the_schema_record_is_unreadable(
    admin: Store, sessions: Sessions
) -> None:
    assert isinstance(admin, ZooKeeperStore)
    schema, _ = admin._client.get("/schema")
    admin._client.set("/schema", b"junk")
    operator = sessions.of("operator", "al")
    flow = records.Flow(revision=1)
    with pytest.raises(UnavailableError, match="access list is unknown while /schema"):
        operator.write(paths.flow("new"), flow, ABSENT)
    operator.write(paths.flow("web"), flow, ANY)  # keeps its access list
    admin._client.set("/schema", schema)
    wait_for(lambda: can_create(operator, paths.flow("new"), flow))
    assert acl_mismatches(admin, admin.dump()) == []


def can_create(store: Store, path: ZnodePath, value: records.Record) -> bool:
    with contextlib.suppress(UnavailableError):
        store.write(path, value, ABSENT)
        return True
    return False


def test_looser_access_list_is_found_and_repaired(admin: Store) -> None:
    assert isinstance(admin, ZooKeeperStore)
    everybody: AccessList = (("world:anyone", "rwcda"),)
    admin.set_access_lists({str(ACK): everybody, "/audit": everybody})
    said = {problem.path: problem.what for problem in verify_cluster(admin)}
    assert said.keys() == {str(ACK), "/audit"}
    assert "looser: world:anyone may rwcda" in said[str(ACK)]
    assert set_access(admin) == 2
    assert verify_cluster(admin) == []


@pytest.mark.long
def test_an_ensemble_speaks_tls_between_its_servers_and_survives_its_leader(
    certificates: Certificates, sessions: Sessions, tmp_path: Path
) -> None:
    ensemble = RealEnsemble(tmp_path, certificates.folder("zookeeper", name="zk1"))
    try:
        ensemble.start()
        store = sessions.of("admin", "root", f"{ensemble.address}/c")
        tree.init(store)
        secure(store)
        assert verify_cluster(store) == []
        elections = [int(peer.rpartition(":")[2]) for peer in ensemble.peers]
        assert all(speaks_tls("127.0.0.1", port) for port in elections)
        ensemble.leader.kill()
        wait_for(lambda: answers(store), seconds=180)
    finally:
        ensemble.stop()
