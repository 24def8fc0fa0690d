"""Identities in certificates, their issuers, and the certificates that a process uses."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flumeng.platform.errors import UserError
from flumeng.platform.security import credentials, enrolment, expiry
from flumeng.platform.security.authority import load_authority, new_authority, private_pem
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.expiry import Expiry
from flumeng.platform.security.identity import Identity, identity_of, parse_uri
from flumeng.platform.security.roles import DIRECTORY, PEOPLE, Role, subject_of
from tests.testkit.certificates import Certificates
from tests.testkit.clock import Clock

NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.mark.parametrize("role", ["admin", "node", "collector", "zookeeper", "subscriber"])
def test_certificate_names_its_identity(certificates: Certificates, role: Role) -> None:
    found = Keystore(certificates.folder(role, name="web-1.example"), role).load()
    assert found.identity == Identity("tests", role, "web-1.example")
    assert found.leaf.subject.rfc4514_string() == found.identity.subject


def test_openssl_accepts_issued_certificates(certificates: Certificates) -> None:
    folder = certificates.folder("node")
    command: list[str | Path] = ["openssl", "verify", "-x509_strict", "-CAfile", folder / "ca.pem"]
    for purpose in ("sslclient", "sslserver"):
        names: list[str | Path] = [
            "-purpose",
            purpose,
            "-verify_ip",
            "127.0.0.1",
            folder / "node.pem",
        ]
        subprocess.run([*command, *names], check=True, capture_output=True)
    others: list[str | Path] = ["-verify_ip", "10.0.0.1", folder / "node.pem"]
    assert subprocess.run([*command, *others], check=False, capture_output=True).returncode


def test_subject_has_a_name_only_for_roles_with_rights_by_name() -> None:
    assert subject_of("c", "node", "n1") == "CN=node:n1,O=c"
    assert subject_of("c", "master", "m1") == subject_of("c", "master", "m2") == "CN=master,O=c"


@pytest.mark.parametrize("name", ["", "a/b", "a,O=other", "a b", "-a", "é", "x" * 64, "a\n"])
def test_name_with_a_special_meaning_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name"):
        Identity("tests", "node", name)
    with pytest.raises(UserError, match="cannot be the name"):
        Identity(name, "node", "n1")


@pytest.mark.parametrize(
    "uri",
    ["flumeng://c/chief/n", "flumeng://c/node", "flumeng://c/node/a/b", "http://c/node/n", "", "x"],
)
def test_uri_without_an_identity_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match="is no identity"):
        parse_uri(uri)


def test_certificate_with_contradictory_identities_is_refused(certificates: Certificates) -> None:
    class Two(Identity):
        @property
        def subject(self) -> str:
            return "CN=admin,O=tests"

    issued = certificates.authority.issue(Two("tests", "node", "n1"), days=1, now=expiry.utc_now())
    with pytest.raises(UserError, match="at once"):
        identity_of(credentials.Credentials(b"", issued.certificate, issued.key).leaf)


def test_foreign_certificate_has_no_identity(certificates: Certificates) -> None:
    with pytest.raises(UserError, match="flumeng did not make it"):
        identity_of(certificates.authority.certificate)


def test_a_key_that_others_may_read_is_refused(certificates: Certificates) -> None:
    keystore = Keystore(certificates.folder("node"), "node")
    keystore.key.chmod(0o640)
    with pytest.raises(UserError, match=f"chmod 600 {keystore.key}"):
        keystore.load()


def test_a_key_of_another_certificate_is_refused(certificates: Certificates) -> None:
    keystore = Keystore(certificates.folder("node", "master"), "node")
    keystore.key.write_bytes(Keystore(keystore.folder, "master").key.read_bytes())
    with pytest.raises(UserError, match=r"is not the key of .*node\.pem"):
        keystore.load(rotation_seconds=0.1)


def test_certificate_of_another_role_is_refused(certificates: Certificates) -> None:
    folder = certificates.folder("node")
    for end in ("pem", "key"):
        (folder / f"node.{end}").rename(folder / f"admin.{end}")
    with pytest.raises(UserError, match="belongs to node n1, not to a admin"):
        Keystore(folder, "admin").load()


def test_process_uses_the_credentials_of_its_role(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    assert credentials.load("node") is None
    monkeypatch.setenv(DIRECTORY, str(certificates.folder("operator", "viewer")))
    found = credentials.load(*PEOPLE)
    assert found is not None
    assert found.identity.role == "operator"
    with pytest.raises(UserError, match=r"no certificate of a node \(node\.pem\)"):
        credentials.load("node")


def test_expiry_is_reported_weeks_before(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = certificates.folder("node", days=40)
    monkeypatch.setenv(DIRECTORY, str(folder))
    days, elapsed = 0.0, 0.0

    def told() -> dict[str, str]:
        begun = expiry.utc_now()
        seen = Expiry(lambda: elapsed, lambda: begun + timedelta(days=days))
        return seen.problems()

    assert told() == {}
    days = 11
    (text,) = told().values()
    assert "expires in 29 days" in text
    assert "flumeng node enroll" in text
    days = 41
    assert "servers refuse it" in told()["certificate of node"]


def test_expiry_of_certificates_for_other_sites_is_reported(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = certificates.folder("node", days=40)
    (folder / "sites").mkdir()
    certificates.folder("subscriber", name="nyc", days=9).rename(folder / "sites" / "fra")
    monkeypatch.setenv(DIRECTORY, str(folder))
    (told,) = Expiry(lambda: 0.0, expiry.utc_now).problems().items()
    assert told[0] == "certificate for site fra"
    assert "expires in 9 days" in told[1]


def test_a_new_certificate_ends_the_warning_within_ten_minutes(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY, str(certificates.folder("node", days=1)))
    clock = Clock(0.0)
    expiring = Expiry(clock, expiry.utc_now)
    assert expiring.problems()
    certificates.folder("node", days=300)
    assert expiring.problems()
    clock.now = 600.0
    assert expiring.problems() == {}


def test_no_certificate_outlives_its_authority(certificates: Certificates) -> None:
    with pytest.raises(UserError, match="ask for fewer days"):
        certificates.authority.issue(
            Identity("tests", "node", "n1"), days=4000, now=expiry.utc_now()
        )


def test_host_that_is_not_ascii_is_refused(certificates: Certificates) -> None:
    with pytest.raises(UserError, match=r"the host bücher\.example is not ASCII"):
        certificates.folder("node", hosts=["bücher.example"])


def test_authority_of_the_user_is_accepted(tmp_path: Path) -> None:
    given = new_authority("company", NOW)
    loaded = load_authority(given.pem, private_pem(given.key))
    issuer = enrolment.create_authority(tmp_path / "a", "fra", loaded, NOW)
    issuer.fill(tmp_path / "b", ["admin"], "alice", (), days=30, now=NOW)
    assert Keystore(tmp_path / "b", "admin").load().identity == Identity("fra", "admin", "alice")
    again = enrolment.open_authority(tmp_path / "a")
    assert (again.cluster, again.authority.pem) == ("fra", given.pem)


def test_unreadable_authority_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no authority: `flumeng cluster secure init`"):
        enrolment.open_authority(tmp_path)
    (tmp_path / enrolment.CLUSTER_FILE).mkdir()  # also root cannot read it
    with pytest.raises(UserError, match=r"cannot read the authority in .*Is a directory"):
        enrolment.open_authority(tmp_path)


def test_invalid_authority_is_refused() -> None:
    given, other = new_authority("c", NOW), new_authority("c", NOW)
    with pytest.raises(UserError, match="is not that of its certificate"):
        load_authority(given.pem, private_pem(other.key))
    leaf = given.issue(Identity("c", "admin", "a"), days=1, now=NOW)
    with pytest.raises(UserError, match="not that of an authority"):
        load_authority(leaf.certificate, leaf.key)
    with pytest.raises(UserError, match="expected the authority's certificate"):
        load_authority(b"", b"")


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    issuer = enrolment.create_authority(tmp_path / "a", "c", None, expiry.utc_now())
    issuer.fill(tmp_path / "n", enrolment.HOST_ROLES, "n1", ["h"], days=1, now=expiry.utc_now())
    for folder in ("a", "n"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
        assert all(f.stat().st_mode & 0o777 == 0o600 for f in (tmp_path / folder).iterdir())
    with pytest.raises(UserError, match="already has an authority"):
        enrolment.create_authority(tmp_path / "a", "c", None, expiry.utc_now())


def test_rotated_certificate_is_never_seen_half_written(tmp_path: Path) -> None:
    issuer = enrolment.create_authority(tmp_path / "a", "c", None, expiry.utc_now())
    keystore = Keystore(tmp_path / "n", "node")
    before: tuple[int, ...] = ()
    for _ in range(20):
        issuer.fill(keystore.folder, ["node"], "n1", ["h"], days=1, now=expiry.utc_now())
        assert keystore.changed != before
        before = keystore.changed
        found = keystore.load()
        context = ssl.create_default_context(cadata=found.ca.decode())
        context.load_cert_chain(keystore.certificate, keystore.key)
