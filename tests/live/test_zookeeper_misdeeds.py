"""Misdeeds with each role's certificate, and with none: all of them are refused and logged.

Each misdeed is also done by a role that may do it: so it is the refusal that holds, and not a
misdeed that is impossible for all. The misdeeds that a role may do are listed here by name: a
change that grants more has to say so. The attackers are processes of their own
(``zookeeper_misdeeds``).
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.zookeeper import ABSENT, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.security.roles import DIRECTORY, Role
from tests.live.zookeeper_misdeeds import DONE, JOURNAL, OUTSIDE
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.store import RealZooKeeper
from zkschema import bootstrap, paths, records

MEMBERS = ("node:n1", "node:n2", "operator:al", "operator:bob@app", "subscriber:job")


def fill(store: Store) -> None:
    """Create each kind of znode once, as targets of the attacks."""
    live = records.LiveNode(uuid="u", incarnation="i", pid=1, version="1", since=1.0)
    flow = records.Flow(revision=1)
    text = records.Revision(text="flow: web", author="al", reason="", time=1.0)
    failure = records.QueueFailure(location="a", size=1, modified=1, position=0, why="", time=1.0)
    intent = records.Intent(epoch=1, series="s", number=1, revision=1, splits=1, ranges={})
    journal = records.Journal(flow="web", node="n1", primary="n1", term=1, in_sync=("n1",))
    lease = records.Lease(holder="h", reader="r", keep_seconds=1.0, renewed=1.0)
    master = records.LiveMaster(host="h", pid=1, version="1", since=1.0)
    entry = records.Audit(who="al", command="flow stop web", reason="", time=1.0)
    source = records.PushSource(
        push="p", inventory="i", digest="d", author="al", reason="", time=1.0
    )
    for name in ("web", "app"):
        store.write(paths.flow(name), flow, ABSENT)
        for folder in bootstrap.flow_folders(name):
            store.write(folder, None, ABSENT)
        store.write(paths.plan(name), records.Plan(epoch=1), ABSENT)
        store.write(paths.partitions(name), records.Partitions(), ABSENT)
    store.write(paths.cursor("web", "job"), None, ABSENT)
    found = {
        paths.revision("web", "1"): text,
        paths.node("n1"): records.Node(uuid="n1", roles=("ingest",)),
        paths.node("n2"): records.Node(uuid="n2", roles=("ingest",)),
        paths.assignment("n1"): records.Assignment(),
        paths.status("n1"): records.NodeStatus(assignment_version=0),
        paths.story("n1"): records.Story(),
        paths.live_node("n1"): live,
        paths.live_master("m1"): master,
        paths.journal(JOURNAL): journal,
        paths.ack("web", "main", JOURNAL): records.Ack(epoch=1, offset=5),
        paths.ack("web", "job", JOURNAL): records.Ack(epoch=1, offset=5),
        paths.lease("web", "job"): lease,
        paths.commit("web", "c@1"): records.Commit(epoch=1, staging=(), files=()),
        paths.intent("web", "t"): intent,
        paths.queue("web"): records.Queue(epoch=1, id="q"),
        paths.queue_lanes("web"): None,
        paths.queue_seen("web"): None,
        paths.queue_failures("web"): None,
        paths.queue_lane("web", "0"): None,
        paths.queue_segment("web", "0", "0000000000"): records.QueueSegment(first=0),
        paths.queue_seen_bucket("web", "tail"): records.QueueSeen(),
        paths.queue_failure("web", "0.1"): failure,
        paths.polls("web"): records.Polls(queue="q", path="p"),
        paths.push(): records.Push(),
        paths.push_entry("1"): records.PushEntry(verb="apply", source=source),
        paths.audit("1"): entry,
    }
    for path, record in found.items():
        store.write(path, record, ABSENT)


@pytest.fixture
def hosts(
    secure_zookeeper: RealZooKeeper, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The connect string of a filled secured cluster."""
    hosts = f"{secure_zookeeper.address}/{uuid.uuid4().hex[:12]}"
    monkeypatch.setenv(DIRECTORY, str(certificates.folder("admin", name="root")))
    admin = connect(hosts, roles=["admin"])
    tree.init(admin)
    secure_cluster(Operator(admin, "a", "", 1.0), cluster=CLUSTER, admit=MEMBERS)
    fill(admin)
    yield hosts
    admin.close()


def tried(hosts: str, folder: Path, role: Role, name: str) -> dict[str, str]:
    """Misdeed -> its outcome."""
    command = [sys.executable, "-m", "tests.live.zookeeper_misdeeds", hosts, str(folder), role]
    command.append(f"{role}:{name}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    return said


READS: Final = {"reads a flow's text", "reads settings", "reads acks"}
MAY: dict[tuple[Role, str], set[str]] = {
    ("node", "n2"): {
        "reads a flow's text",
        "reads settings",
        "adds a node",
        "says that a node is live",
        "adds a journal",
    },
    ("collector", "n2"): {
        *READS,
        "moves an ack",
        "moves the cursor of a subscriber",
        "changes a commit",
        "changes a decided batch",
        "hides an object that failed",
        "changes what a poller goes on from",
        "adds an ack",
        "adds a commit",
        "decides a batch",
        "adds a failed object",
        "removes an ack",
        "removes a commit",
        "removes a decided batch",
        "removes what failed",
    },
    ("discovery", "n2"): {
        *READS,
        "stops a flow",
        "changes partitions",
        "adds partitions",
        "changes the head of a queue",
        "adds a queue",
        "changes items of a queue",
        "adds items to a queue",
        "removes items of a queue",
        "forgets what was listed",
        "hides an object that failed",
        "adds a failed object",
        "removes what failed",
        "removes an ack",
        "adds to the audit",
    },
    ("executor", "n2"): READS,
    ("viewer", "vi"): {*READS, "adds to the audit"},
    ("subscriber", "job"): {
        *READS,
        "moves the cursor of a subscriber",
        "adds a cursor",
        "takes a lease",
        "renews the lease of a reader",
    },
    ("operator", "bob"): {*READS, "adds to the audit"},
    ("operator", "al"): {
        *READS,
        "adds a flow",
        "stops a flow",
        "adds a revision",
        "removes a revision",
        "hides a deleted flow",
        "changes the cluster's settings",
        "changes a node's roles",
        "says that a node is live",
        "removes a heartbeat",
        "removes a node's status",
        "changes a plan",
        "removes a plan",
        "changes partitions",
        "removes partitions",
        "adds a cursor",
        "moves the cursor of a subscriber",
        "adds an ack",
        "ends a journal",
        "moves an ack",
        "removes an ack",
        "changes a decided batch",
        "removes a decided batch",
        "removes a commit",
        "removes a journal",
        "removes a lease",
        "hides an object that failed",
        "removes what failed",
        "removes items of a queue",
        "adds a push",
        "adds to the audit",
    },
    ("master", "m1"): {
        *READS,
        "gives a node work",
        "adds a page of work",
        "changes a plan",
        "adds a share of a plan",
        "stops a flow",
        "changes the cluster's settings",
        "changes a node's roles",
        "says that a node is live",
        "removes a heartbeat",
        "removes a node's status",
        "forges a master",
        "adds a master",
        "removes a master",
        "ends a journal",
        "removes a journal",
        "decides a batch",
        "changes a decided batch",
        "removes a decided batch",
        "removes a commit",
        "removes an ack",
        "removes a plan",
        "removes partitions",
        "removes a revision",
        "removes a lease",
        "removes what failed",
        "removes items of a queue",
        "removes an entry of the audit",
        "adds to the audit",
    },
}
"""Allowed operations by role and name."""


@pytest.mark.parametrize(("role", "name"), MAY)
def test_zookeeper_refuses_each_role_the_misdeeds_beyond_its_rights(
    hosts: str, certificates: Certificates, role: Role, name: str
) -> None:
    said = tried(hosts, certificates.folder(role, name=name), role, name)
    assert {one for one, what in said.items() if what == DONE} == MAY[role, name]
    assert set(said.values()) <= {DONE, "NoAuthError"}


@pytest.mark.parametrize(
    ("role", "name"), [("node", "n9"), ("operator", "eve"), ("zookeeper", "zk9")]
)
def test_client_that_was_not_admitted_has_no_rights(
    hosts: str, certificates: Certificates, role: Role, name: str
) -> None:
    said = tried(hosts, certificates.folder(role, name=name), role, name)
    assert set(said.values()) == {"NoAuthError"}


@pytest.mark.long
def test_certificate_of_another_cluster_has_no_rights(
    hosts: str, certificates: Certificates, tmp_path: Path
) -> None:
    elsewhere = Certificates(tmp_path / "elsewhere", "elsewhere")
    elsewhere.authority = certificates.authority
    said = tried(hosts, elsewhere.folder("admin", name="root"), "admin", "root")
    assert set(said.values()) == {"NoAuthError"}
    strangers = {
        "of another authority": Certificates(tmp_path / "other").folder("admin", name="root"),
        "expired": certificates.folder("admin", name="late", days=-0.001),
    }
    for name, folder in strangers.items():
        (folder / "ca.pem").write_bytes(certificates.authority.pem)
        assert set(tried(hosts, folder, "admin", "root").values()) == {OUTSIDE}, name


def test_administrator_may_do_each_of_these_misdeeds(
    hosts: str, certificates: Certificates
) -> None:
    said = tried(hosts, certificates.folder("admin", name="root"), "admin", "root")
    assert set(said.values()) == {DONE}, said
    assert len(said) > 60
