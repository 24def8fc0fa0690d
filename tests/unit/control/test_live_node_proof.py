"""A live znode counts only when its node has signed the session that owns it, and which journals
masters take off the list."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flumeng.agent.node.registration import Identity, Registration
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.master.daemon import Master
from flumeng.control.snapshot.assignment_pages import read_assignment
from flumeng.control.zookeeper import ABSENT, Version, Versioned
from flumeng.platform.errors import ForbiddenError
from flumeng.platform.security import sessions
from flumeng.platform.security.credentials import Credentials, Keystore
from flumeng.platform.security.roles import DIRECTORY, Role
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.cluster import new_cluster
from tests.testkit.light_nodes import ClaimsInMemory
from tests.testkit.scripted_store import ScriptedStore, fail, removes
from tests.testkit.store import FakeStore, FakeTree
from zkschema import codec, paths, records

JOURNAL = "web.n1.0.ab"
SESSION = 7
FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:5514"}}]
sinks: [{console: {}}]
"""
LIVE = records.LiveNode(
    uuid="u", incarnation="i", pid=1, version="1", since=1.0, identity="node:n1"
)
Why = Callable[..., str]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


def credentials(
    certificates: Certificates, role: Role = "node", name: str = "n1", days: float = 1
) -> Credentials:
    return Keystore(certificates.folder(role, name=name, days=days), role).load()


@pytest.fixture
def why(certificates: Certificates) -> Why:
    """The reason why it does not prove that ``SESSION`` belongs to n1 of the cluster: by default,
    now."""

    def why(given: Credentials, signed: int = SESSION, **changed: Any) -> str:
        asked = {
            "cluster": CLUSTER,
            "node": "n1",
            "session": SESSION,
            "ca": certificates.authority.pem,
            "at": time.time(),
        }
        signature = sessions.signature(given, signed)
        return sessions.why_unproven(given.certificate.decode(), signature, **asked | changed)

    return why


def test_a_node_proves_its_own_session(certificates: Certificates, why: Why) -> None:
    assert why(credentials(certificates)) == ""


def test_proof_of_one_session_does_not_prove_another(certificates: Certificates, why: Why) -> None:
    own = credentials(certificates)
    assert "or purpose" in why(own, SESSION + 1)
    assert "no session owns it" in why(own, 0, session=0)


def test_proof_fails_with_another_certificate(
    certificates: Certificates, why: Why, tmp_path: Path
) -> None:
    other = credentials(certificates, name="n2")
    assert "belongs to node n2" in why(other)
    assert "belongs to collector n1" in why(credentials(certificates, role="collector"))
    stranger = Certificates(tmp_path / "stranger")
    assert "is not valid" in why(credentials(stranger))
    elsewhere = replace_cluster(certificates, "elsewhere")
    assert "belongs to node n1 of elsewhere" in why(credentials(elsewhere))


def replace_cluster(certificates: Certificates, cluster: str) -> Certificates:
    """Another cluster of the same authority."""
    other = Certificates(certificates.top / cluster, cluster)
    other.authority = certificates.authority
    return other


def test_certificate_of_the_node_with_anothers_signature_proves_nothing(
    certificates: Certificates, why: Why
) -> None:
    """Certificates are public: every live znode has one."""
    own, thief = credentials(certificates), credentials(certificates, name="n2")
    assert "signature does not match" in why(replace(thief, certificate=own.certificate))


def test_proof_of_another_node_proves_nothing_in_its_own_session(
    certificates: Certificates, why: Why
) -> None:
    assert why(credentials(certificates, name="n2"), node="n2") == ""
    assert why(credentials(certificates, name="n2"), node="n3") != ""


def test_certificate_must_be_valid_when_the_znode_is_written_and_not_later(
    certificates: Certificates, why: Why
) -> None:
    own, now = credentials(certificates, days=1), time.time()
    assert why(own, at=now + 86_000) == ""
    assert "is not valid" in why(own, at=now + 87_000)
    assert "is not valid" in why(own, at=now - 1000)


@pytest.mark.parametrize(
    ("certificate", "signature", "said"),
    [("", "", "no proof"), ("no PEM", "", "PEM"), ("", "AAAA", "no proof")],
)
def test_missing_or_malformed_proof_is_reported(
    certificate: str, signature: str, said: str
) -> None:
    found = sessions.why_unproven(
        certificate, signature, cluster="c", node="n1", session=1, ca=b"", at=0.0
    )
    assert said in found


def test_damaged_signature_is_reported(certificates: Certificates) -> None:
    own = credentials(certificates).certificate.decode()
    ca, at = certificates.authority.pem, time.time()
    for signature in ("", "AAAA", "not base64!"):
        assert sessions.why_unproven(
            own, signature, cluster=CLUSTER, node="n1", session=1, ca=ca, at=at
        )


class Secured:
    """A secured cluster with one flow, a master, and nodes with certificates."""

    def __init__(self, certificates: Certificates, environment: pytest.MonkeyPatch) -> None:
        self.certificates, self._environment = certificates, environment
        self.tree = FakeTree(clock=time.time)
        self.store = new_cluster(self.tree)
        self.admit("node:n1", "node:n2")
        apply_flow(Operator(self.store, "a", "", 0.0), FLOW)
        self.identify("master", "m1")
        self.master = Master(FakeStore(self.tree), "m1")

    def admit(self, *members: str, expel: Sequence[str] = ()) -> None:
        secure_cluster(
            Operator(self.store, "a", "", 0.0), cluster=CLUSTER, admit=members, expel=expel
        )

    def identify(self, role: Role, name: str) -> None:
        folder = self.certificates.folder(role, name=name)
        self._environment.setenv(DIRECTORY, str(folder))

    def node(self, name: str, store: FakeStore) -> Registration:
        self.identify("node", name)
        me = Identity(name, name, ("ingest", "collect"), "", {})
        return Registration(store, me, ClaimsInMemory())

    def live(self, name: str) -> Versioned[records.LiveNode]:
        found = self.store.read(paths.live_node(name))
        assert found is not None
        return found

    def tasks(self, name: str) -> list[str]:
        """The assigned tasks of the node, which is live, once the master has come to rest."""
        said = [self.master.tick() for _ in range(6)]
        assert said[-1] == "nothing to do", said
        assert self.store.exists(paths.live_node(name)), f"{name} does not count as live"
        found = read_assignment(self.store, name)
        return sorted(task.task for task in found.value.tasks) if found else []


@pytest.fixture
def secured(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Secured:
    return Secured(certificates, monkeypatch)


def test_a_node_that_proves_its_session_gets_work(secured: Secured) -> None:
    node = secured.node("n1", FakeStore(secured.tree))
    node.register()
    node.announce(("h:1",))
    assert secured.tasks("n1") == ["collect.0", "ingest.n1"]


def test_forged_live_znode_does_not_make_a_dead_node_live(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    """The work of n1 goes to n2, though n2 forges that n1 is live; and n1 can come back at once."""
    caplog.set_level(logging.INFO)
    store, thief = FakeStore(secured.tree), FakeStore(secured.tree)
    node, other = secured.node("n1", store), secured.node("n2", thief)
    for one in (node, other):
        one.register()
    node.announce(("h:1",))
    assert "collect.0" in secured.tasks("n1")
    other.announce(("h:2",))
    stolen, own = secured.live("n1").value, secured.live("n2").value
    store.expire()
    bare = replace(own, certificates="")
    for forged in (stolen, own, replace(own, certificates=stolen.certificates), bare):
        thief.write(paths.live_node("n1"), forged, ABSENT)
        assert "removed /live/nodes/n1, which does not prove" in secured.master.tick()
        assert not store.exists(paths.live_node("n1"))
    assert "collect.0" in secured.tasks("n2")
    said = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert [text.partition(": ")[2] for text in said] == [
        "its signature does not match its content, key or purpose",
        "its certificate belongs to node n2 of tests",
        "it has no proof",
    ]
    node.announce(("h:1",))
    assert secured.live("n1").session == store.session
    assert "ingest.n1" in secured.tasks("n1")


def test_live_znode_that_cannot_be_removed_does_not_count_either(secured: Secured) -> None:
    """A member that makes a znode may make others below it, which keep it there."""
    thief = FakeStore(secured.tree)
    secured.node("n1", thief).register()
    thief.write(paths.live_node("n1"), LIVE, ABSENT)
    below = f"{paths.live_node('n1')}/kept"
    secured.tree.znodes[below] = secured.tree.znodes["/live"]
    assert "still has children" in secured.master.tick()
    for _ in range(3):
        secured.master.tick()
    told = read_assignment(secured.store, "n1")
    assert told is not None
    assert [task.task for task in told.value.tasks] == ["ingest.n1"], "it is to collect"
    del secured.tree.znodes[below]
    secured.master._reader.invalidate()
    assert "removed /live/nodes/n1" in secured.master.tick()


def test_live_znode_without_a_valid_record_does_not_count(secured: Secured) -> None:
    secured.node("n1", FakeStore(secured.tree)).register()
    thief = FakeStore(secured.tree)
    thief.write(paths.live_node("n1"), LIVE, ABSENT)
    secured.tree.znodes[str(paths.live_node("n1"))].data = b"\0"
    secured.master.tick()
    assert not thief.exists(paths.live_node("n1"))


def test_live_znode_of_a_newer_flumeng_is_kept_though_it_is_not_proven(secured: Secured) -> None:
    """As during an upgrade, when a node is newer than a master."""
    store = FakeStore(secured.tree)
    secured.node("n1", store).register()
    store.write(paths.live_node("n1"), LIVE, ABSENT)
    secured.tree.znodes[str(paths.live_node("n1"))].data = b'{"v": 99}'
    for _ in range(3):
        secured.master.tick()
    assert store.exists(paths.live_node("n1"))
    assert not secured.master._reader.snapshot().nodes["n1"].live


def test_node_that_was_not_admitted_is_not_live(secured: Secured) -> None:
    """Also once it is expelled: a live znode of before counts no longer."""
    node = secured.node("n1", FakeStore(secured.tree))
    node.register()
    node.announce(("h:1",))
    assert secured.tasks("n1") != []
    live = secured.live("n1")
    secured.admit(expel=["node:n1"])
    secured.tree.znodes[str(paths.live_node("n1"))] = replace(
        secured.tree.znodes["/schema"], data=codec.encode(live.value), session=live.session
    )
    assert "removed /live/nodes/n1" in secured.master.tick()


def test_reconnected_and_new_sessions_are_live(secured: Secured) -> None:
    store = FakeStore(secured.tree)
    node = secured.node("n1", store)
    node.register()
    node.announce(("h:1",))
    before = secured.tasks("n1")
    store.cut()
    store.heal()
    node.register()
    node.announce(("h:1",))
    assert secured.live("n1").version == Version(0), "it was written again for nothing"
    assert secured.tasks("n1") == before != []
    store.expire()
    secured.master.tick()
    node.register()
    node.announce(("h:1",))
    assert secured.live("n1").session == store.session
    assert secured.tasks("n1") != []


def test_process_restarted_in_the_same_session_is_live(secured: Secured) -> None:
    store = FakeStore(secured.tree)
    secured.node("n1", store).announce(("h:1",))
    again = secured.node("n1", store)
    again.register()
    again.announce(("h:2",))
    assert secured.live("n1").value.addresses == ("h:2",)
    assert secured.tasks("n1") != []


def test_replaced_certificate_is_proven_again_without_a_gap(secured: Secured) -> None:
    node = secured.node("n1", FakeStore(secured.tree))
    node.register()
    node.announce(("h:1",))
    before, old = secured.tasks("n1"), secured.live("n1").value
    secured.certificates.folder("node", name="n1")
    assert secured.tasks("n1") == before
    node.announce(("h:1",))
    assert secured.live("n1").value.certificates != old.certificates
    assert secured.tasks("n1") == before
    Keystore(secured.certificates.top / "n1", "node").certificate.write_bytes(b"half of it")
    node.announce(("h:1", "h:2"))
    assert secured.live("n1").value.addresses == ("h:1", "h:2")
    assert secured.tasks("n1") == before


def test_checked_proof_is_not_checked_again(secured: Secured) -> None:
    node = secured.node("n1", FakeStore(secured.tree))
    node.register()
    node.announce(("h:1",))
    secured.master.tick()
    checked = sessions.why_unproven.cache_info().misses
    secured.admit("node:n3")
    for _ in range(3):
        secured.master._reader.invalidate()
        secured.master.tick()
    assert sessions.why_unproven.cache_info().misses == checked


def test_open_cluster_needs_no_proof_until_it_is_secured(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeTree(clock=time.time)
    store = new_cluster(cluster)
    apply_flow(Operator(store, "a", "", 0.0), FLOW)
    store.write(paths.node("n1"), records.Node(uuid="u", roles=("ingest",)), ABSENT)
    store.write(paths.live_node("n1"), LIVE, ABSENT)
    monkeypatch.setenv(DIRECTORY, str(certificates.folder("master", name="m1")))
    master = Master(FakeStore(cluster), "m1")
    for _ in range(4):
        master.tick()
    assert read_assignment(store, "n1") is not None
    assert store.exists(paths.live_node("n1"))
    secure_cluster(Operator(store, "a", "", 0.0), cluster=CLUSTER, admit=["node:n1"])
    assert "removed /live/nodes/n1" in master.tick()


def test_node_marks_a_drained_journal_gone_and_masters_remove_it(secured: Secured) -> None:
    refusing = fail(ForbiddenError("nodes remove nothing"), when=removes)
    node = secured.node("n1", ScriptedStore(secured.tree, before_commit=refusing))
    node.register()
    node.announce(("h:1",))
    said = {JOURNAL: {"flow": "web", "term": 1, "closed": True, "end": 8}}
    ack = paths.ack("web", "main", JOURNAL)
    secured.store.write(ack, records.Ack(epoch=1, offset=8), ABSENT)
    node.journals.enter(said)
    secured.tasks("n1")
    assert secured.store.exists(paths.journal(JOURNAL)), "its node has not said that it is gone"
    node.journals.deregister(node.journals.acks().unneeded)
    assert dict(node.journals.registered) == {}
    node.reread()
    assert dict(node.journals.registered) == {}, "it was taken back"
    assert f"removed the registration of journal {JOURNAL}" in secured.master.tick()
    assert not secured.store.exists(paths.journal(JOURNAL))
    assert not secured.store.exists(ack)
