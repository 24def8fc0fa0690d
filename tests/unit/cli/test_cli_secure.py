"""``flumeng cluster secure`` and ``flumeng node enroll``: on directories alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.context import CliContext
from flumeng.platform.security.authority import new_authority, private_pem
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.identity import Identity
from flumeng.platform.security.roles import DIRECTORY
from flumeng.platform.security.signing import is_signed, signature
from tests.testkit.command_line import Shell
from tests.testkit.store import FakeTree


@pytest.fixture
def shell() -> Shell:
    return Shell(FakeTree())


@pytest.fixture
def authority(shell: Shell, tmp_path: Path) -> Path:
    made = shell.run(
        "cluster", "secure", "init", tmp_path / "ca", "--cluster", "fra", "--admin", "ann"
    )
    assert made.exit_code == 0, made.stderr
    assert f"export {DIRECTORY}={tmp_path / 'ca' / 'ann'}" in made.stdout
    return tmp_path / "ca"


def test_the_first_certificate_is_that_of_an_admin(authority: Path) -> None:
    found = Keystore(authority / "ann", "admin").load()
    assert found.identity == Identity("fra", "admin", "ann")


def test_second_authority_does_not_replace_the_first(shell: Shell, authority: Path) -> None:
    before = (authority / "ca.key").read_bytes()
    again = shell.run("cluster", "secure", "init", authority)
    assert again.exit_code == 2
    assert "already has an authority" in again.stderr
    assert (authority / "ca.key").read_bytes() == before


def test_authority_of_the_user_issues_certificates(shell: Shell, tmp_path: Path) -> None:
    given = new_authority("company", utc_now())
    certificate, key = tmp_path / "given.pem", tmp_path / "given.key"
    certificate.write_bytes(given.pem)
    key.write_bytes(private_pem(given.key))
    files = ("--ca-certificate", certificate, "--ca-key", key)
    assert shell.run("cluster", "secure", "init", tmp_path / "ca", *files[:2]).exit_code == 2
    assert shell.run("cluster", "secure", "init", tmp_path / "ca", *files).exit_code == 0
    assert Keystore(tmp_path / "ca" / "admin", "admin").load().ca == given.pem


def test_host_gets_the_certificates_of_its_processes(
    shell: Shell, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("node", "enroll", "web1", "--authority", authority, "--to", tmp_path / "web1")
    refused = shell.run(*given)
    assert refused.exit_code == 2
    assert "with --host" in refused.stderr
    assert not (tmp_path / "web1").exists()
    assert shell.run(*given, "--host", "web1.example", "--host", "10.0.0.7").exit_code == 0
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "web1"))
    shown = shell.run("cluster", "secure", "show", "--json")
    assert shown.exit_code == 0
    roles = [row["role"] for row in json.loads(shown.stdout)]
    assert roles == ["node", "discovery", "collector", "executor"]


def test_host_gets_no_certificates_of_roles_that_its_node_lacks(
    shell: Shell, authority: Path, tmp_path: Path
) -> None:
    given = ("node", "enroll", "gw1", "--authority", authority, "--to", tmp_path / "gw1")
    gateway = ("--role", "gateway", "--host", "gw1.example")
    assert shell.run(*given, *gateway).exit_code == 0
    certificates = {file.name for file in (tmp_path / "gw1").glob("*.pem")}
    assert certificates == {"ca.pem", "node.pem", "gateway.pem"}


def test_invalid_certificate_is_shown(shell: Shell, authority: Path, tmp_path: Path) -> None:
    to = tmp_path / "bob"
    issue = ("cluster", "secure", "issue", "viewer", "bob", "--authority", authority, "--to", to)
    assert shell.run(*issue).exit_code == 0
    assert shell.run("cluster", "secure", "show", to).exit_code == 0
    (to / "viewer.key").chmod(0o644)
    shown = shell.run("cluster", "secure", "show", to)
    assert shown.exit_code == 1
    assert "chmod 600" in shown.stdout


def test_missing_authority_is_wrong_input(shell: Shell, tmp_path: Path) -> None:
    refused = shell.run("cluster", "secure", "issue", "viewer", "bob", "--authority", tmp_path)
    assert refused.exit_code == 2
    assert "`flumeng cluster secure init` makes one" in refused.stderr


def test_signing_key_signs_and_its_public_key_is_printed(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shell.run("cluster", "secure", "signing-key", tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("FLUMENG_SIGNING_KEY", str(tmp_path / "key"))
    assert is_signed("web", "text", signature("web", "text"), [made.stdout.strip()])


def test_the_audit_has_the_name_of_the_certificate(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "@" in CliContext().who()
    monkeypatch.setenv(DIRECTORY, str(authority / "ann"))
    assert CliContext().who() == "admin ann"
