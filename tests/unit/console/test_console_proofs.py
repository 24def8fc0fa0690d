"""Who asks the console: certificates, tokens, and the bounds by the console's own certificate."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from flumeng.console.who.members import READ_SECONDS, Members
from flumeng.console.who.tokens import Tokens, new_token
from flumeng.control.zookeeper import ANY
from flumeng.platform.errors import UserError
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.identity import Identity
from flumeng.platform.security.roles import Role
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.console import PAGE_PROBE, PROBE, Asked, csrf_of, field_of, written
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.access import SECURED

GROUPS = {"operator": "operator:x", "any-operator": "any-operator:y"}


def secure(store: FakeStore, *members: str, expelled: Sequence[str] = ()) -> None:
    """Make the cluster a secured one with these members."""
    schema = store.read(paths.schema())
    assert schema is not None
    record = replace(
        schema.value,
        features=tuple({*schema.value.features, SECURED}),
        certificates=CLUSTER,
        members=members,
        groups=GROUPS,
        expelled=tuple(expelled),
    )
    store.write(paths.schema(), record, ANY)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def der(
    certificates: Certificates, role: Role, name: str, cluster: str = CLUSTER, days: float = 1
) -> bytes:
    issued = certificates.authority.issue(Identity(cluster, role, name), days=days, now=utc_now())
    return x509.load_pem_x509_certificate(issued.certificate).public_bytes(Encoding.DER)


@pytest.fixture
def asked(store: FakeStore) -> Asked:
    """A console with an operator's identity that asks for certificates."""
    asked = Asked(store)
    asked.times.now = utc_now().timestamp()
    own = Identity(CLUSTER, "operator", "console")
    members = Members(store, own, asked.times, asked.times)
    asked.who = replace(asked.who, members=members, anonymous=None, certificates=True)
    secure(store, "operator:console", "operator:bob@web,app-*", "operator:al")
    return asked


@pytest.mark.parametrize(
    ("role", "name", "seen"),
    [
        ("viewer", "eve", {"name": "viewer eve", "role": "viewer", "flows": None}),
        ("admin", "root", {"name": "admin root", "role": "admin", "flows": None}),
        ("operator", "al", {"name": "operator al", "role": "operator", "flows": None}),
        (
            "operator",
            "bob",
            {"name": "operator bob", "role": "operator", "flows": ["app-*", "web"]},
        ),
    ],
)
def test_certificate_gives_its_role(
    asked: Asked, certificates: Certificates, role: Role, name: str, seen: dict[str, object]
) -> None:
    client = asked.client(certificate=der(certificates, role, name))
    answer = client.get(PROBE).json()
    assert {key: answer[key] for key in seen} == seen
    change = client.post(PROBE, json={}, headers={"x-csrf-token": csrf_of(client)})
    assert change.status_code == (403 if role == "viewer" else 200)


def test_limited_operator_may_not_change_another_flow(
    asked: Asked, certificates: Certificates, store: FakeStore
) -> None:
    secure(store, "operator:console", "operator:bob@app-*")
    client = asked.client(certificate=der(certificates, "operator", "bob"))
    answer = client.post(PROBE, json={})
    assert answer.status_code == 403
    assert "operator bob may not change flow web" in answer.json()["detail"]


def test_expelled_operator_is_refused_within_seconds(
    asked: Asked, certificates: Certificates, store: FakeStore
) -> None:
    client = asked.client(certificate=der(certificates, "operator", "al"))
    assert client.get(PROBE).status_code == 200
    secure(store, "operator:console", expelled=["operator:al"])
    asked.times.now += READ_SECONDS
    answer = client.get(PROBE)
    assert answer.status_code == 401
    assert "not admitted" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("role", "cluster", "why"),
    [
        ("operator", CLUSTER, "not admitted"),
        ("viewer", "other", "belongs to the cluster other"),
        ("node", CLUSTER, "no person"),
        ("collector", CLUSTER, "no person"),
    ],
)
def test_other_certificates_are_refused(
    asked: Asked, certificates: Certificates, role: Role, cluster: str, why: str
) -> None:
    client = asked.client(certificate=der(certificates, role, "stranger", cluster))
    answer = client.get(PROBE)
    assert answer.status_code == 401
    assert why in answer.json()["detail"]
    assert client.get("/").status_code == 401
    assert why in client.get("/").text


def test_certificate_that_ended_is_refused_on_an_open_connection(
    asked: Asked, certificates: Certificates
) -> None:
    client = asked.client(certificate=der(certificates, "viewer", "eve"))
    assert client.get(PROBE).status_code == 200
    asked.times.now += 86_400
    assert "ended" in client.get(PROBE).json()["detail"]


def test_without_a_proof_nothing_is_shown(asked: Asked) -> None:
    client = asked.client()
    answer = client.get(PROBE)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    page = client.get("/flows?page=2")
    assert page.status_code == 401
    assert "seen" not in page.text
    assert client.get("/static/console.css").status_code == 200


def test_rights_last_while_zookeeper_is_away(
    asked: Asked, certificates: Certificates, store: FakeStore
) -> None:
    client = asked.client(certificate=der(certificates, "operator", "bob"))
    assert client.get(PROBE).status_code == 200
    store.cut()
    asked.times.now += READ_SECONDS
    assert client.get(PROBE).json()["flows"] == ["app-*", "web"]


@pytest.mark.parametrize("role", ["viewer", "master"])
def test_console_that_may_only_read_lets_nobody_change(
    asked: Asked, certificates: Certificates, store: FakeStore, role: Role
) -> None:
    own = Identity(CLUSTER, role, "console")
    asked.who = replace(asked.who, members=Members(store, own, asked.times, asked.times))
    client = asked.client(certificate=der(certificates, "admin", "root"))
    assert client.get(PROBE).json()["role"] == "admin"
    refused = client.post(PROBE, json={})
    assert refused.status_code == 403
    assert "the console's own certificate does not allow it" in refused.text
    assert "the console's own certificate may only read" in client.get("/").text


def test_console_of_some_flows_bounds_its_viewers(
    asked: Asked, certificates: Certificates, store: FakeStore
) -> None:
    secure(store, "operator:console@app-*", "operator:al")
    client = asked.client(certificate=der(certificates, "operator", "al"))
    answer = client.post(PROBE, json={})
    assert answer.status_code == 403
    assert "the console's own certificate does not allow it" in answer.json()["detail"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.yaml"


def with_tokens(asked: Asked, file: Path, *lines: str) -> None:
    file.write_text("\n".join(["tokens:", *lines, ""]))
    asked.who = replace(asked.who, tokens=Tokens(file, asked.times), certificates=False)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_token_gives_its_rights_and_needs_no_csrf_token(asked: Asked, file: Path) -> None:
    token, line = new_token("ci", "operator", ("web",), "2999-01-01")
    with_tokens(asked, file, line)
    client = asked.client()
    answer = client.get(PROBE, headers=bearer(token)).json()
    assert (answer["name"], answer["role"], answer["flows"]) == ("token:ci", "operator", ["web"])
    csrf_of_somebody = client.post(PROBE, json={}, headers=bearer(token))
    assert csrf_of_somebody.status_code == 200
    cross = {**bearer(token), "origin": "http://elsewhere.example"}
    assert client.post(PROBE, json={}, headers=cross).status_code == 200


def test_token_of_other_flows_may_not_change_this(asked: Asked, file: Path) -> None:
    token, line = new_token("ci", "operator", ("app-*",), "2999-01-01")
    with_tokens(asked, file, line)
    assert asked.client().post(PROBE, json={}, headers=bearer(token)).status_code == 403


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer", "Basic YTpi", "", "Bearer é"])
def test_wrong_token_is_refused_even_with_a_certificate(
    asked: Asked, certificates: Certificates, file: Path, header: str
) -> None:
    _, line = new_token("ci", "viewer", (), "2999-01-01")
    with_tokens(asked, file, line)
    asked.who = replace(asked.who, certificates=True)
    client = asked.client(certificate=der(certificates, "viewer", "eve"))
    assert client.get(PROBE).status_code == 200
    answer = client.get(PROBE, headers={b"authorization": header.encode("latin-1")})
    assert answer.status_code == 401


def test_revoked_token_is_refused_at_once(asked: Asked, file: Path) -> None:
    token, line = new_token("ci", "viewer", (), "2999-01-01")
    _, other = new_token("other", "viewer", (), "2999-01-01")
    with_tokens(asked, file, line, other)
    client = asked.client()
    assert client.get(PROBE, headers=bearer(token)).status_code == 200
    file.write_text(f"tokens:\n{other}\n")
    assert client.get(PROBE, headers=bearer(token)).status_code == 401


def test_token_ends_with_its_last_day(asked: Asked, file: Path) -> None:
    asked.times.now = 1_798_761_599.0  # 2026-12-31 23:59:59
    token, line = new_token("ci", "viewer", (), "2026-12-31")
    with_tokens(asked, file, line)
    client = asked.client()
    assert client.get(PROBE, headers=bearer(token)).status_code == 200
    asked.times.now += 1
    assert client.get(PROBE, headers=bearer(token)).status_code == 401


def test_unusable_file_makes_all_tokens_invalid_until_it_is_mended(
    asked: Asked, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token, line = new_token("ci", "viewer", (), "2999-01-01")
    with_tokens(asked, file, line)
    client = asked.client()
    file.write_text("tokens: {ci: {role: king}}\n")
    assert client.get(PROBE, headers=bearer(token)).status_code == 503
    assert "king" in caplog.text
    file.write_text(f"tokens:\n{line}\n")
    assert client.get(PROBE, headers=bearer(token)).status_code == 200


def test_bad_token_file_is_refused_with_all_problems(asked: Asked, file: Path) -> None:
    file.write_text(
        "tokens:\n  a b: {role: viewer, sha256: x}\n"
        "  c: {role: viewer, flows: [web], until: soon}\n"
    )
    with pytest.raises(UserError) as raised:
        Tokens(file, asked.times)
    text = str(raised.value)
    for part in ("letters, digits", "64 hexadecimal digits", "a day, like"):
        assert part in text, text
    with pytest.raises(UserError, match="cannot read"):
        Tokens(file.with_name("absent"), asked.times)


def test_guesses_of_tokens_are_bounded(asked: Asked, file: Path) -> None:
    token, line = new_token("ci", "viewer", (), "2999-01-01")
    with_tokens(asked, file, line)
    client = asked.client()
    statuses = [client.get(PROBE, headers=bearer("x")).status_code for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert client.get(PROBE, headers=bearer(token)).status_code == 200


def test_login_with_a_token_begins_a_session_until_it_is_revoked(asked: Asked, file: Path) -> None:
    token, line = new_token("ci", "operator", (), "2999-01-01")
    with_tokens(asked, file, line)
    client = asked.client()
    page = client.get("/flows?page=2")
    csrf, then = field_of(page.text, "csrf"), field_of(page.text, "then")
    before = client.cookies["flumeng-8080"]
    answer = client.post("/login", data={"csrf": csrf, "then": then, "token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, "/flows?page=2")
    assert client.get(PROBE).json()["name"] == "token:ci"
    assert asked.who.sessions.read(before) is None, "its number was known before the login"
    assert client.post(PAGE_PROBE, data={"csrf": csrf}).status_code == 403
    assert client.post(PAGE_PROBE, data={"csrf": csrf_of(client)}).status_code == 200
    file.write_text("tokens: {}\n")
    assert client.get(PROBE).status_code == 401


@pytest.mark.parametrize(
    "then", ["//evil.example", "/\\evil.example", "https://evil.example", "/login"]
)
def test_login_leads_to_no_other_site(asked: Asked, file: Path, then: str) -> None:
    token, line = new_token("ci", "viewer", (), "2999-01-01")
    with_tokens(asked, file, line)
    client = asked.client()
    csrf = field_of(client.get("/login").text, "csrf")
    answer = client.post("/login", data={"csrf": csrf, "then": then, "token": token})
    assert answer.headers["location"] == "/"


def test_login_needs_the_token_of_the_form(asked: Asked, file: Path) -> None:
    """Else another site could log a browser in as somebody else."""
    token, line = new_token("ci", "viewer", (), "2999-01-01")
    with_tokens(asked, file, line)
    assert asked.client().post("/login", data={"token": token}).status_code == 403


def test_logout_ends_the_session_for_stolen_cookies_too(asked: Asked, file: Path) -> None:
    token, line = new_token("ci", "viewer", (), "2999-01-01")
    with_tokens(asked, file, line)
    client = asked.client()
    csrf = field_of(client.get("/login").text, "csrf")
    client.post("/login", data={"csrf": csrf, "token": token})
    stolen = client.cookies["flumeng-8080"]
    assert client.post("/logout", data={"csrf": "x"}).status_code == 403
    assert client.post("/logout", data={"csrf": csrf_of(client)}).status_code == 200
    assert client.get(PROBE).status_code == 401
    thief = asked.client()
    thief.cookies.set("flumeng-8080", stolen)
    assert thief.get(PROBE).status_code == 401


def test_proofs_are_never_logged(
    asked: Asked, file: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    token, line = new_token("ci", "viewer", (), "2999-01-01")
    with_tokens(asked, file, line)
    with caplog.at_level(logging.DEBUG):
        client = asked.client()
        texts = [client.get("/login").text]
        csrf = field_of(texts[0], "csrf")
        for given in (token, "flumeng_wrong"):
            texts.append(client.get(PROBE, headers=bearer(given)).text)
            texts.append(client.post("/login", data={"csrf": csrf, "token": given}).text)
        cookie = client.cookies["flumeng-8080"]
    seen = caplog.text + str(capsys.readouterr())
    own = "\n".join(record.message for record in caplog.records if "httpx" not in record.name)
    for secret in (token, "flumeng_wrong", cookie, csrf):
        assert secret not in seen + own
    assert not any(token in text or "flumeng_wrong" in text for text in texts)


def test_written_token_file_is_closed_by_default(tmp_path: Path) -> None:
    """A token and its line do not share the token."""
    token, line = new_token("ci", "viewer", (), "2999-01-01")
    assert token not in line
    assert Tokens(written(tmp_path, "t", f"tokens:\n{line}\n"), lambda: 1.0).of(token)
