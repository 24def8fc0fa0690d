"""Gateways serve subscribers, with the flows that the policy grants; refusals have a sentence."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from flumeng.agent.gateway.leases import Leases
from flumeng.config import policy
from flumeng.config.component import RemoteFlow
from flumeng.config.policy_file import REREAD_SECONDS, PolicyFile
from flumeng.connectors.api.finding import Before
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.sites import fetching
from flumeng.connectors.sites.credentials import fingerprints
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.control.commands import lease_breaks
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper import tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.journal.log.errors import DeniedError
from flumeng.journal.serving import wire
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.gateway_wire import LeaseAnswer, LeaseRequest
from flumeng.journal.serving.proof import Proof
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.security.authority import Authority, new_authority
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.identity import Identity
from flumeng.platform.security.roles import DIRECTORY, Role
from tests.live.gateway_sites import BY, PARTITION, WEB, J, Sites, secured, secured_sites
from tests.testkit.certificates import CLUSTER, HOSTS, Certificates
from tests.testkit.clock import Clock
from tests.testkit.cluster import acks_of, add_journal
from tests.testkit.store import RealZooKeeper
from zkschema.records import Gap, Lease

__all__ = ["secured"]


def test_subscriber_reads_what_the_policy_grants(secured: Sites) -> None:
    assert secured.finder().find(Before()).offers.keys() == {PARTITION}
    assert secured.read(0, 1000).num_rows == 1000
    finder = SiteFinder(RemoteFlow("fra", "app", 600.0), secured.nyc, "copy")
    with pytest.raises(DeniedError, match="does not let subscriber nyc read the flow app"):
        finder.find(Before())
    foreign = Range("fra:app.n1.0.0a1b2c3d@site", 0, 1)
    with pytest.raises(DeniedError, match="does not let subscriber nyc read the flow app"):
        next(secured.reader().read(foreign, secured.addresses))


@pytest.mark.parametrize("revoked", ["{}", "{nyc: [app]}"])
def test_revoked_flow_ends_a_running_read_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revoked: str
) -> None:
    path, clock = tmp_path / "node.yaml", Clock()
    path.write_text("subscribers: {nyc: {flows: [web], bytes_per_second: 1MB}}")
    file = PolicyFile(path, policy.load(path), clock)
    monkeypatch.setattr(fetching, "_events", {})  # a first piece of few events
    with secured_sites(tmp_path, monkeypatch, file) as sites:
        sites.append(300_000)
        reading = sites.reader().read(Range(PARTITION, 0, 301_000), sites.addresses)
        next(reading)
        path.write_text(f"subscribers: {revoked}")
        clock.now += REREAD_SECONDS
        with pytest.raises(DeniedError, match="does not let subscriber nyc read the flow web"):
            list(reading)
        with pytest.raises(DeniedError, match="does not let subscriber nyc read the flow web"):
            sites.finder().find(Before())
        path.write_text("subscribers: {nyc: [web]}")
        clock.now += REREAD_SECONDS
        assert sites.read(0, 301_000).num_rows == 301_000


def test_subscriber_without_a_grant_reads_no_watched_journal(secured: Sites) -> None:
    assert secured.finder().find(Before()).offers.keys() == {PARTITION}
    folder = Certificates(secured.folder.parent / "more", "fra")
    folder.authority = secured.certificates.authority
    credentials = Keystore(folder.folder("subscriber", name="lon"), "subscriber").load()
    address = secured.gateways[0].address
    with JournalClient(address, prove=lambda: Proof.of(credentials)) as client:
        for read in (client.read, client.copy):
            with pytest.raises(DeniedError, match="does not let subscriber lon read the flow web"):
                next(read(J, 0, 10))


@pytest.mark.parametrize("role", ["collector", "admin", "gateway"])
def test_gateway_serves_no_other_certificate_of_its_cluster(secured: Sites, role: Role) -> None:
    """A stolen one reads no event at the port that other sites reach."""
    assert secured.finder().find(Before()).offers.keys() == {PARTITION}
    credentials = Keystore(secured.certificates.folder(role, name="eve"), role).load()
    with JournalClient(secured.gateways[0].address, prove=lambda: Proof.of(credentials)) as client:
        with pytest.raises(DeniedError, match="serves subscribers, not"):
            next(client.read(J, 0, 10))
        with pytest.raises(DeniedError, match="serves subscribers, not"):
            client.ask(wire.FLOW_POSITIONS, b"{}", lambda answer: answer)


def test_site_of_another_authority_is_refused_before_a_call(secured: Sites) -> None:
    add_site(Operator(secured.nyc, *BY), "fra", secured.addresses.split(","), "ab" * 32)
    with pytest.raises(UserError, match="has the authority"):
        secured.finder().find(Before())


def test_failed_handshake_has_its_sentence(secured: Sites, tmp_path: Path) -> None:
    """The subscriber trusts another authority than that of the gateways."""
    other = Certificates(tmp_path / "other", "fra")
    identity = Path(os.environ[DIRECTORY])
    (identity / "sites" / "fra").unlink()
    (identity / "sites" / "fra").symlink_to(other.folder("subscriber", name="nyc"))
    fingerprint = fingerprints(other.authority.pem)[0]
    add_site(Operator(secured.nyc, *BY), "fra", secured.addresses.split(","), fingerprint)
    with pytest.raises(
        UnavailableError, match=r"gateway \S+ has a certificate of another authority"
    ):
        secured.finder().find(Before())


def issued(
    sites: Sites,
    role: Role,
    *,
    begins: float,
    authority: Authority | None = None,
    hosts: Sequence[str] = HOSTS,
) -> None:
    """Replace a certificate by one that begins so many days from now, and is valid for 9."""
    own = Path(os.environ[DIRECTORY])
    folder = own / "sites" / "fra" if role == "subscriber" else own
    identity = Identity("fra", role, "nyc" if role == "subscriber" else "n1")
    by = authority or sites.certificates.authority
    pair = by.issue(identity, hosts, days=9, now=utc_now() + timedelta(days=begins))
    keystore = Keystore(folder, role)
    keystore.key.write_bytes(pair.key)
    keystore.certificate.write_bytes(pair.certificate)


@pytest.mark.parametrize(
    ("role", "begins", "sentence"),
    [
        ("gateway", -10, r"certificate of gateway \S+ has expired by this host's clock"),
        ("gateway", 1, r"certificate of gateway \S+ is not valid yet by this host's clock"),
        ("subscriber", -10, "this subscriber's certificate for site fra expired at"),
        ("subscriber", 1, "this subscriber's certificate for site fra is valid from .* on, but"),
    ],
)
def test_certificate_that_is_not_valid_now_is_named(
    secured: Sites, role: Role, begins: float, sentence: str
) -> None:
    issued(secured, role, begins=begins)
    gateway = secured.gateway() if role == "gateway" else secured.gateways[0]
    fingerprint = fingerprints(secured.certificates.authority.pem)[0]
    add_site(Operator(secured.nyc, *BY), "fra", [gateway.address], fingerprint)
    with pytest.raises(UnavailableError, match=f"no gateway of site fra answers: .*{sentence}"):
        secured.finder().find(Before())
    with pytest.raises(UnavailableError, match=sentence):
        next(secured.reader().read(Range(PARTITION, 0, 10), gateway.address))


@pytest.mark.parametrize(
    ("role", "hosts", "sentence"),
    [
        ("gateway", HOSTS, r"gateway \S+ has a certificate of another authority"),
        ("gateway", ("gw.example",), r"certificate of gateway \S+ is for other names"),
        ("subscriber", HOSTS, "certificate for site fra is of another authority than its ca.pem"),
    ],
)
def test_foreign_certificate_is_named(
    secured: Sites, role: Role, hosts: tuple[str, ...], sentence: str
) -> None:
    other = None if hosts != HOSTS else new_authority("fra", utc_now())
    issued(secured, role, begins=0, authority=other, hosts=hosts)
    gateway = secured.gateway() if role == "gateway" else secured.gateways[0]
    fingerprint = fingerprints(secured.certificates.authority.pem)[0]
    add_site(Operator(secured.nyc, *BY), "fra", [gateway.address], fingerprint)
    with pytest.raises(UnavailableError, match=sentence):
        secured.finder().find(Before())


def test_lease_of_another_site_is_refused(secured: Sites) -> None:
    name_cluster(Operator(secured.nyc, *BY), "lon")
    with pytest.raises(DeniedError, match="your certificate is for the site nyc, not lon"):
        secured.finder().find(Before())


def test_gateway_of_a_secured_cluster_may_hold_leases(
    certificates: Certificates, secure_zookeeper: RealZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY, str(certificates.folder("admin", "gateway", "node")))
    address = f"{secure_zookeeper.address}/gateways"
    with closing(connect(address, roles=["admin"])) as admin:
        tree.init(admin)
        secure_cluster(Operator(admin, *BY), cluster=CLUSTER)
        apply_flow(Operator(admin, *BY), WEB)
        add_journal(admin, J)
        with closing(connect(address, roles=["gateway"])) as store:
            kept = Leases(store, lambda: 1000.0)
            request = LeaseRequest("web", "nyc", "copy", 600.0, {J: 3})
            first = kept.renew("fra", "nyc", request)
            again = msgspec.structs.replace(request, acks={J: 7}, id=first.id)
            assert kept.renew("fra", "nyc", again) == LeaseAnswer("fra", first.id, time=1000.0)
            lease = Lease(holder="h", reader="r", keep_seconds=1.0, renewed=0.0)
            broke = lease_breaks.new_break(lease, "w", 0.0, [Gap(journal=J, start=1, end=3)])
            write = lease_breaks.recorded(store, "web", "nyc:copy", lambda _: broke)
            assert write is not None
            store.commit([write])
        assert acks_of(admin, "web", "nyc:copy") == {J: 7}
