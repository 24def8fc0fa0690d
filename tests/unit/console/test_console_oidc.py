"""Logins at an OpenID provider: a provider in this process, well and ill behaved."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import urllib3
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey
from starlette.testclient import TestClient

from flumeng.console.who.oidc import (
    CALLBACK,
    KEYS_LEAST_SECONDS,
    LOGIN_SECONDS,
    Oidc,
    OidcOptions,
    read_options,
)
from flumeng.console.who.tokens import Grant
from flumeng.console.who.viewers import Rights
from flumeng.platform.errors import UserError
from tests.testkit.clock import Clock
from tests.testkit.console import NOON, PROBE, Asked, csrf_of, written
from tests.testkit.store import FakeStore

ISSUER = "https://login.example/realm"
URL = "https://console.example"
SECRET = "the client's secret"
CODE = "code-0123456789"
SUBJECT = "subject-1"


def key(name: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": name, "use": "sig", "alg": "ES256"})


@dataclass
class Provider:
    """Answers as a provider does. ``spoil`` changes the claims, ``sign`` makes the ID token."""

    clock: Clock
    keys: list[ECKey] = field(default_factory=lambda: [key("k1")])
    spoil: dict[str, Any] = field(default_factory=dict)
    user: dict[str, Any] = field(default_factory=dict)
    sign: Callable[[dict[str, Any]], str] | None = None
    document: dict[str, Any] = field(default_factory=dict)
    nonce: str = ""
    challenge: str = ""
    asked: list[str] = field(default_factory=list)
    down: bool = False

    def request(self, method: str, url: str, **options: Any) -> urllib3.BaseHTTPResponse:
        assert options["redirect"] is False
        assert method == ("POST" if url.endswith("/token") else "GET")
        self.asked.append(urlsplit(url).path)
        if self.down:
            raise urllib3.exceptions.ProtocolError(f"no answer to {options.get('body')}")
        status, answer = self._answer(urlsplit(url).path, options)
        body = io.BytesIO(json.dumps(answer).encode())
        return urllib3.HTTPResponse(body, status=status, preload_content=False)

    def _answer(self, path: str, options: dict[str, Any]) -> tuple[int, object]:
        if path.endswith("openid-configuration"):
            ends = ("authorization", "token", "userinfo", "end_session")
            document = {f"{end}_endpoint": f"{ISSUER}/{end}" for end in ends}
            return 200, {
                "issuer": ISSUER,
                "jwks_uri": f"{ISSUER}/jwks",
                **document,
                **self.document,
            }
        if path.endswith("/jwks"):
            return 200, KeySet(list(self.keys)).as_dict(private=False)
        if path.endswith("/userinfo"):
            assert options["headers"]["authorization"] == "Bearer access"
            return 200, {"sub": SUBJECT, **self.user}
        assert path.endswith("/token")
        form = {name: texts[0] for name, texts in parse_qs(options["body"]).items()}
        proof = base64.b64decode(options["headers"]["authorization"].removeprefix("Basic "))
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        right = unquote(proof.decode().replace("+", " ")) == f"console:{SECRET}"
        if form["code"] != CODE or not right or challenge != self.challenge:
            return 400, {"error": "invalid_grant"}
        return 200, {"id_token": self.id_token(), "access_token": "access"}

    def id_token(self) -> str:
        now = int(self.clock())
        claims = {
            "iss": ISSUER,
            "aud": "console",
            "sub": SUBJECT,
            "iat": now,
            "exp": now + 300,
            "nonce": self.nonce,
            "email": "al@example.org",
            "groups": ["sre", "staff"],
            **self.spoil,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        if self.sign is not None:
            return self.sign(claims)
        own = self.keys[-1]
        return jwt.encode({"alg": "ES256", "kid": own.kid}, claims, own)


OPTIONS = OidcOptions(
    issuer=ISSUER,
    client_id="console",
    client_secret="${secret:console}",
    groups={
        "sre": Grant("operator"),
        "web": Grant("operator", ("web",)),
        "app": Grant("operator", ("app-*",)),
        "look": Grant("viewer"),
        "root": Grant("admin"),
    },
)


@dataclass
class Login:
    provider: Provider
    asked: Asked
    client: TestClient

    def begin(self, then: str = "/flows") -> dict[str, str]:
        """Go to the provider; return the parameters with which it was asked."""
        answer = self.client.get("/login/oidc", params={"then": then})
        assert answer.status_code == 303, answer.text
        parts = urlsplit(answer.headers["location"])
        assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{ISSUER}/authorization"
        question = {name: texts[0] for name, texts in parse_qs(parts.query).items()}
        self.provider.nonce, self.provider.challenge = question["nonce"], question["code_challenge"]
        return question

    def end(self, **answer: str) -> Any:
        return self.client.get(CALLBACK, params={"code": CODE, **answer})

    def name(self) -> Any:
        return self.client.get(PROBE).json().get("name")


@pytest.fixture
def login(store: FakeStore) -> Iterator[Login]:
    clock = Clock(NOON)
    provider = Provider(clock)
    asked = Asked(store, clock)
    oidc = Oidc(
        OPTIONS, SECRET, URL, asked.who.sessions.seal, clock=clock, monotonic=clock, http=provider
    )
    hosts = frozenset({"console.example"})
    asked.who = replace(asked.who, oidc=oidc, anonymous=None, url=URL, hosts=hosts)
    yield Login(provider, asked, asked.client(url=URL))


def test_login_and_logout(login: Login) -> None:
    page = login.client.get("/flows")
    assert page.status_code == 401
    assert '<a href="/login/oidc?then=/flows">' in page.text
    question = login.begin()
    assert question["redirect_uri"] == f"{URL}{CALLBACK}"
    assert (question["response_type"], question["code_challenge_method"]) == ("code", "S256")
    answer = login.end(state=question["state"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/flows")
    assert login.client.get(PROBE).json()["name"] == "oidc:al@example.org"
    left = login.client.post("/logout", data={"csrf": csrf_of(login.client)})
    assert f"{ISSUER}/end_session?client_id=console" in left.text
    assert login.client.get(PROBE).status_code == 401


def test_answer_of_another_login_is_refused(login: Login) -> None:
    login.begin()
    answer = login.end(state="another")
    assert answer.status_code == 401
    assert "another login" in answer.text
    assert login.name() is None


def test_answer_cannot_be_used_twice(login: Login) -> None:
    question = login.begin()
    name = "__Host-flumeng-login"
    cookie = login.client.cookies[name]
    assert login.end(state=question["state"]).status_code == 303
    thief = login.asked.client(url=URL)
    thief.cookies.set(name, cookie)
    answer = thief.get(CALLBACK, params={"code": CODE, "state": question["state"]})
    assert (answer.status_code, "already done" in answer.text) == (401, True)


def test_answer_without_the_cookie_of_its_login_is_refused(login: Login) -> None:
    """Else an attacker could log somebody in as the attacker."""
    question = login.begin()
    login.client.cookies.clear()
    assert login.end(state=question["state"]).status_code == 401


def test_answer_that_comes_late_is_refused(login: Login) -> None:
    question = login.begin()
    login.provider.clock.now += LOGIN_SECONDS
    assert "too long ago" in login.end(state=question["state"]).text


def test_answer_of_another_provider_is_refused(login: Login) -> None:
    question = login.begin()
    answer = login.end(state=question["state"], iss="https://evil.example")
    assert "another provider" in answer.text


def test_refusal_of_the_provider_is_shown_without_its_text(login: Login) -> None:
    question = login.begin()
    given = {"state": question["state"], "error": "<script>access_denied"}
    answer = login.client.get(CALLBACK, params=given)
    assert answer.status_code == 401
    assert "access_denied" not in answer.text


def test_code_of_another_login_is_refused(login: Login) -> None:
    """PKCE: the provider knows another challenge for a stolen code."""
    question = login.begin()
    login.provider.challenge = "another"
    assert login.end(state=question["state"]).status_code == 401


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ({"iss": "https://evil.example"}, "another provider"),
        ({"iss": None}, "another provider"),
        ({"aud": "other"}, "another application"),
        ({"aud": ["console", "other"]}, "another application"),
        ({"azp": "other"}, "another application"),
        ({"exp": int(NOON) - 61}, "expired"),
        ({"exp": None}, "no end"),
        ({"exp": "never"}, "no end"),
        ({"iat": int(NOON) - 3600}, "not made now"),
        ({"nbf": int(NOON) + 600}, "early"),
        ({"nonce": "another"}, "another login"),
        ({"nonce": None}, "another login"),
        ({"sub": ""}, "names no person"),
    ],
)
def test_wrong_claims_are_refused(login: Login, spoil: dict[str, Any], why: str) -> None:
    question = login.begin()
    login.provider.spoil = spoil
    answer = login.end(state=question["state"])
    assert answer.status_code == 401
    assert why in answer.text
    assert login.name() is None


def unsigned(claims: dict[str, Any]) -> str:
    parts = [{"alg": "none", "typ": "JWT"}, claims]
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*texts, b""]).decode()


def by_another_key(claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "ES256", "kid": "k1"}, claims, key("k1"))


def by_the_public_key_as_secret(claims: dict[str, Any]) -> str:
    secret = OctKey.import_key(b"public key in PEM" * 4)
    return jwt.encode({"alg": "HS256", "kid": "k1"}, claims, secret)


def by_the_client_secret(claims: dict[str, Any]) -> str:
    secret = OctKey.import_key(SECRET.encode())
    return jwt.encode({"alg": "HS256"}, claims, secret)


def with_its_own_key(claims: dict[str, Any]) -> str:
    own = RSAKey.generate_key(2048)
    header = {"alg": "RS256", "jwk": own.as_dict(private=False)}
    return jwt.encode(header, claims, own)


@pytest.mark.parametrize(
    "sign",
    [
        unsigned,
        by_another_key,
        by_the_public_key_as_secret,
        by_the_client_secret,
        with_its_own_key,
        lambda _claims: "no token",
        lambda _claims: "",
    ],
)
def test_forged_token_is_refused(login: Login, sign: Callable[[dict[str, Any]], str]) -> None:
    question = login.begin()
    login.provider.sign = sign
    answer = login.end(state=question["state"])
    assert answer.status_code == 401, answer.text
    assert login.name() is None


def test_new_key_of_the_provider_is_read(login: Login) -> None:
    assert login.end(state=login.begin()["state"]).status_code == 303
    login.provider.keys = [key("k2")]
    login.provider.clock.now += KEYS_LEAST_SECONDS + 1
    assert login.end(state=login.begin()["state"]).status_code == 303
    assert login.provider.asked.count("/realm/jwks") == 2


def test_forged_tokens_do_not_make_the_console_read_keys_each_time(login: Login) -> None:
    login.provider.sign = by_another_key
    for _ in range(3):
        login.end(state=login.begin()["state"])
    assert login.provider.asked.count("/realm/jwks") == 1


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        ({}, "oidc:al@example.org"),
        ({"email_verified": False}, "oidc:subject-1"),
        ({"email": None}, "oidc:subject-1"),
        ({"email": "a\nb\u202e@example.org"}, "oidc:a?b?@example.org"),
    ],
)
def test_name_in_the_audit(login: Login, spoil: dict[str, Any], name: str) -> None:
    login.provider.spoil = spoil
    login.end(state=login.begin()["state"])
    assert login.name() == name


def test_claims_are_completed_from_the_user_info(login: Login) -> None:
    login.provider.spoil = {"email": None, "groups": None}
    login.provider.user = {"email": "bo@example.org", "groups": ["look"]}
    assert login.end(state=login.begin()["state"]).status_code == 303
    answer = login.client.get(PROBE).json()
    assert (answer["name"], answer["role"]) == ("oidc:bo@example.org", "viewer")


def test_user_info_of_somebody_else_is_refused(login: Login) -> None:
    login.provider.spoil = {"groups": None}
    login.provider.user = {"sub": "another", "groups": ["root"]}
    assert login.end(state=login.begin()["state"]).status_code == 401


@pytest.mark.parametrize(
    ("groups", "rights"),
    [
        (("look",), Rights("viewer")),
        (("web", "app", "look"), Rights("operator", ("app-*", "web"))),
        (("web", "sre"), Rights("operator")),
        (("web", "root"), Rights("admin")),
        (("unknown",), None),
    ],
)
def test_rights_of_groups(groups: tuple[str, ...], rights: Rights | None) -> None:
    assert OPTIONS.rights(groups) == rights


def test_person_without_a_group_may_not_look(login: Login) -> None:
    login.provider.spoil = {"groups": ["staff"]}
    answer = login.end(state=login.begin()["state"])
    assert answer.status_code == 401
    assert "oidc:al@example.org is in no group" in answer.text


def test_limited_operator_may_not_change_another_flow(login: Login) -> None:
    login.provider.spoil = {"groups": ["app"]}
    login.end(state=login.begin()["state"])
    token = {"x-csrf-token": csrf_of(login.client)}
    assert login.client.post(PROBE, json={}, headers=token).status_code == 403


def test_provider_that_is_away_or_another_is_reported(login: Login) -> None:
    login.provider.down = True
    answer = login.client.get("/login/oidc")
    assert answer.status_code == 503
    assert "does not answer: ProtocolError" in answer.text
    login.provider.down = False
    login.provider.document = {"issuer": "https://evil.example"}
    assert login.client.get("/login/oidc").status_code == 503


def test_discovery_document_cannot_lead_to_plain_http(login: Login) -> None:
    login.provider.document = {"authorization_endpoint": "http://login.example/"}
    answer = login.client.get("/login/oidc")
    assert (answer.status_code, "authorization_endpoint" in answer.text) == (503, True)


def test_logins_of_one_address_are_bounded(login: Login) -> None:
    statuses = [login.client.get("/login/oidc").status_code for _ in range(12)]
    assert statuses == [303] * 10 + [429] * 2


def test_codes_tokens_and_secrets_are_never_logged(
    login: Login, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("httpx", "httpx2", "httpcore"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # those of the test's own client
    with caplog.at_level(logging.DEBUG, logger="flumeng"):
        question = login.begin()
        texts = [login.end(state=question["state"], code="wrong-code").text]
        question = login.begin()
        login.provider.down = True
        texts.append(login.end(state=question["state"]).text)
    for secret in (CODE, "wrong-code", SECRET, question["state"], question["nonce"]):
        assert secret not in caplog.text
        assert not any(secret in text for text in texts)
    assert "refused a code" in caplog.text


def test_bad_file_is_refused_with_all_problems(tmp_path: Path) -> None:
    text = """issuer: http://login.example
client_id: console
client_secret: in clear
scopes: [email]
groups: {sre: {role: king}, look: {role: viewer, flows: [a b]}}
"""
    with pytest.raises(UserError) as raised:
        read_options(written(tmp_path, "oidc.yaml", text))
    shown = str(raised.value)
    for part in (
        "expected a URL like https",
        "reference to a secret",
        "king",
        "the name of a flow",
    ):
        assert part in shown, shown
    assert "in clear" not in shown
    with pytest.raises(UserError, match="cannot read"):
        read_options(tmp_path / "absent")
