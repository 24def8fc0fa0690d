"""The options of the console: unsafe ones are refused at the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flumeng.console.who.sessions import read_key
from flumeng.console.who.start import Options, prepare
from flumeng.console.who.tokens import new_token
from flumeng.console.who.viewers import Rights
from flumeng.control.zookeeper import ANY
from flumeng.platform.errors import UserError
from flumeng.platform.security.credentials import Keystore
from tests.testkit.certificates import Certificates
from tests.testkit.command_line import Shell
from tests.testkit.console import written
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.access import SECURED

LOCAL = "127.0.0.1:8080"
OIDC = """issuer: https://login.example
client_id: console
client_secret: ${secret:console}
groups: {sre: {role: operator}}
"""


@pytest.fixture
def keystore(tmp_path: Path) -> Keystore:
    folder = Certificates(tmp_path).folder("viewer", hosts=["console.example", "10.0.0.7"])
    return Keystore(folder, "viewer")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    _, line = new_token("ci", "viewer", (), "2999-01-01")
    return written(tmp_path, "tokens.yaml", f"tokens:\n{line}\n")


def problems(store: FakeStore, options: Options, keystore: Keystore | None = None) -> str:
    with pytest.raises(UserError) as raised:
        prepare(store, options, keystore, _resolve)
    return str(raised.value)


def _resolve(reference: str) -> str:
    assert reference == "${secret:console}"
    return "secret"


@pytest.mark.parametrize("listen", [LOCAL, "localhost:0", "[::1]:0"])
def test_loopback_without_options_lets_everybody_look(store: FakeStore, listen: str) -> None:
    who, tls = prepare(store, Options(listen), None, _resolve)
    assert (who.anonymous, tls, who.certificates) == (Rights("viewer"), None, False)
    assert "localhost" in who.hosts


def test_loopback_with_an_identity_stays_plain_unless_told(
    store: FakeStore, keystore: Keystore
) -> None:
    who, tls = prepare(store, Options(LOCAL), keystore, _resolve)
    assert (who.anonymous, tls) == (Rights("viewer"), None)
    who, tls = prepare(store, Options(LOCAL, tls=True), keystore, _resolve)
    assert (who.anonymous, who.certificates) == (None, True)
    assert tls is not None


def test_changes_by_everybody_only_in_an_open_cluster(store: FakeStore) -> None:
    who, _ = prepare(store, Options(LOCAL, allow_changes=True), None, _resolve)
    assert who.anonymous == Rights("operator")
    schema = store.read(paths.schema())
    assert schema is not None
    secured = replace(schema.value, features=(SECURED,))
    store.write(paths.schema(), secured, ANY)
    assert "needs a proven name" in problems(store, Options(LOCAL, allow_changes=True))


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:0", "10.0.0.7:80"])
def test_other_hosts_need_tls_and_a_proof(store: FakeStore, tokens: Path, listen: str) -> None:
    """A token in clear could be read on its way."""
    for options in (Options(listen), Options(listen, tokens=tokens)):
        shown = problems(store, options)
        assert "without a proof" in shown
        assert "flumeng cluster secure issue viewer console" in shown


def test_other_hosts_are_served_with_an_identity(store: FakeStore, keystore: Keystore) -> None:
    who, tls = prepare(store, Options("0.0.0.0:8080"), keystore, _resolve)
    assert (who.anonymous, who.certificates) == (None, True)
    assert tls is not None
    assert "console.example" in who.hosts
    assert "allow-changes" in problems(store, Options("0.0.0.0:8080", allow_changes=True), keystore)


def test_with_tokens_nobody_looks_without_one(store: FakeStore, tokens: Path) -> None:
    who, _ = prepare(store, Options(LOCAL, tokens=tokens), None, _resolve)
    assert who.anonymous is None


def test_provider_needs_the_url(store: FakeStore, tmp_path: Path) -> None:
    file = written(tmp_path, "oidc.yaml", OIDC)
    assert "--oidc needs --url" in problems(store, Options(LOCAL, oidc=file))
    who, _ = prepare(
        store, Options(LOCAL, oidc=file, url="https://console.example"), None, _resolve
    )
    assert who.oidc is not None
    assert "console.example" in who.hosts


@pytest.mark.parametrize("url", ["console.example", "http://console.example", "https://a/b"])
def test_bad_url_is_refused(store: FakeStore, url: str) -> None:
    assert f"--url {url}" in problems(store, Options(LOCAL, url=url))


def test_tls_needs_an_identity(store: FakeStore) -> None:
    assert "--tls needs an identity" in problems(store, Options(LOCAL, tls=True))


def test_bad_key_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "key", "k" * 32)
    assert read_key(file) == b"k" * 32
    file.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        read_key(file)
    with pytest.raises(UserError, match="fewer than 32"):
        read_key(written(tmp_path, "short", "k"))
    with pytest.raises(UserError, match="cannot read"):
        read_key(tmp_path / "absent")
    assert read_key(None) != read_key(None)


def test_command_prints_a_token_and_its_line(
    shell: Shell, store: FakeStore, tmp_path: Path
) -> None:
    words = ("console", "token", "ci", "--role", "operator", "--flow", "web-*", "--days", 0)
    token, _, line = shell.run(*words, zk=None).stdout.splitlines()
    assert token.startswith("flumeng_")
    assert token not in line
    who, _ = prepare(
        store, Options(LOCAL, tokens=written(tmp_path, "t", f"tokens:\n{line}\n")), None, _resolve
    )
    assert who.tokens is not None
    found = who.tokens.of(token)
    assert found is not None
    assert (found[0], found[1].rights) == ("ci", Rights("operator", ("web-*",)))
