"""OpenID Connect: authorization code with PKCE, by the provider's discovery document.

Follows OpenID Connect Core 1.0 (3.1), RFC 7636, RFC 9207 and RFC 9700. The ID token must be signed
by a key of the provider with an asymmetric algorithm. The code, tokens and claims of the provider
are in no message and no log.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import urllib3
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from flumeng.config.decode import decode
from flumeng.config.document import compose
from flumeng.console.who.refusals import LogInError
from flumeng.console.who.sessions import Seal
from flumeng.console.who.tokens import Grant
from flumeng.console.who.viewers import Rights
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.options.option import option
from flumeng.platform.options.problems import SpecError

log = logging.getLogger(__name__)

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""No `none`, and none with a shared secret."""
CALLBACK = "/login/oidc/callback"
LOGIN_SECONDS = 600.0
"""How long a person may take to log in at the provider."""
ANSWER_SECONDS = 10.0
ANSWER_BYTES = 1 << 20
KEYS_SECONDS = 3600.0
"""The provider's keys are read again after this time, or earlier for an unknown key."""
KEYS_LEAST_SECONDS = 10.0
LEEWAY_SECONDS = 60.0
"""Clocks of hosts differ by less."""
ISSUED_SECONDS = 600.0
NAME_CHARACTERS = 100
MOST_STATES = 10_000
_STRENGTH = {"viewer": 0, "operator": 1, "admin": 2}


def check_issuer(text: str) -> None:
    parts = urlsplit(text)
    if parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1"):
        return
    if parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("expected a URL like https://login.example/realm")


@dataclass(frozen=True)
class OidcOptions:
    """How people log in at an OpenID provider."""

    issuer: str = option(
        doc="The URL of the provider, as in its discovery document.",
        check=check_issuer,
        example="https://login.example/realm",
    )
    client_id: str = option(doc="The name of the console at the provider.", example="flumeng")
    client_secret: str = option(
        doc="The secret of the console at the provider.",
        secret=True,
        example="${secret:console-oidc}",
    )
    groups: Mapping[str, Grant] = option(
        doc="The rights of each group; the strongest role of a person's groups counts, with all "
        "flows of that role. People without such a group may not even read.",
        example="{sre: {role: operator}, web: {role: operator, flows: [web]}}",
    )
    scopes: tuple[str, ...] = option(
        doc="The scopes that the console asks for.", default=("openid", "email", "profile")
    )
    groups_claim: str = option(doc="The claim with a person's groups.", default="groups")

    def problems(self) -> Iterator[tuple[str, str]]:
        if "openid" not in self.scopes:
            yield "scopes", "expected openid among them"

    def rights(self, groups: tuple[str, ...]) -> Rights | None:
        """Return the rights of somebody in these groups; None without any."""
        grants = [self.groups[name].rights for name in groups if name in self.groups]
        if not grants:
            return None
        role = max((grant.role for grant in grants), key=_STRENGTH.__getitem__)
        flows = [grant.flows for grant in grants if grant.role == role]
        if any(of is None for of in flows):
            return Rights(role)
        return Rights(role, tuple(sorted({name for of in flows for name in of or ()})))


def read_options(file: Path) -> OidcOptions:
    """Raises UserError with all problems, a line each."""
    try:
        return decode(OidcOptions, compose(file.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"cannot read {file}: {reason}") from error
    except SpecError as error:
        raise UserError("\n".join(f"{file}: {problem}" for problem in error.problems)) from error


@dataclass(frozen=True)
class Person:
    """A person named by the provider. ``groups``: those with rights."""

    name: str
    groups: tuple[str, ...]


class Http(Protocol):
    """The part of urllib3's PoolManager that is used here."""

    def request(self, method: str, url: str, **options: Any) -> urllib3.BaseHTTPResponse: ...


@dataclass
class _Keys:
    keys: KeySet = field(default_factory=lambda: KeySet([]))
    read_at: float = float("-inf")


class Oidc:
    """The login at one provider. Thread-safe. ``secret``: the client's. ``url``: the console's, for
    people. ``clock``: seconds since the epoch; ``monotonic``: seconds. ``http``: urllib3's by
    default."""

    def __init__(
        self,
        options: OidcOptions,
        secret: str,
        url: str,
        seal: Seal,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        http: Http | None = None,
    ) -> None:
        self.options, self._secret, self._seal = options, secret, seal
        self._redirect = url.rstrip("/") + CALLBACK
        self._clock, self._monotonic = clock, monotonic
        self._lock = threading.Lock()
        self._http = http or urllib3.PoolManager(cert_reqs="CERT_REQUIRED", retries=False)
        self._provider: Mapping[str, Any] = {}
        self._keys = _Keys()
        self._used: dict[str, float] = {}

    def start(self, then: str) -> tuple[str, str]:
        """Return where to send the browser, and a sealed cookie for it. ``then``: the path to show
        after the login. Raises UnavailableError when the provider does not answer."""
        state = secrets.token_urlsafe(24)
        verifier = self._seal.mac("verifier", state.encode())
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        question = {
            "response_type": "code",
            "client_id": self.options.client_id,
            "redirect_uri": self._redirect,
            "scope": " ".join(self.options.scopes),
            "state": state,
            "nonce": self._seal.mac("nonce", state.encode()),
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        cookie = {"state": state, "then": then, "until": self._clock() + LOGIN_SECONDS}
        endpoint = self._endpoint("authorization_endpoint")
        return f"{endpoint}?{urlencode(question)}", self._seal.sealed("login", cookie)

    def finish(self, cookie: str, answer: Mapping[str, str]) -> tuple[Person, str]:
        """Return the person, and the path to show. ``answer``: the parameters of the callback.
        Raises LogInError; UnavailableError when the provider does not answer."""
        began = self._seal.opened("login", cookie)
        if began is None or began["until"] <= self._clock():
            raise LogInError("this login was begun elsewhere, or too long ago: log in again")
        state = began["state"]
        if not hmac.compare_digest(state.encode(), answer.get("state", "").encode()):
            raise LogInError("the answer belongs to another login: log in again")
        if answer.get("iss", self.options.issuer) != self.options.issuer:
            raise LogInError("the answer is from another provider: log in again")
        self._use_once(state, began["until"])
        if "code" not in answer:
            raise LogInError("the provider has refused the login")
        return self._person(answer["code"], state), str(began["then"])

    def leave_url(self) -> str:
        """Return where people end their session at the provider; empty when it has no such page."""
        with self._lock:
            endpoint = str(self._provider.get("end_session_endpoint", ""))
        if urlsplit(endpoint).scheme not in ("https", "http"):
            return ""
        return f"{endpoint}?{urlencode({'client_id': self.options.client_id})}"

    def rights(self, groups: tuple[str, ...]) -> Rights | None:
        return self.options.rights(groups)

    def _use_once(self, state: str, until: float) -> None:
        with self._lock:
            now = self._clock()
            for old in [old for old, end in self._used.items() if end <= now]:
                del self._used[old]
            if state in self._used:
                raise LogInError("this login is already done: log in again")
            if len(self._used) >= MOST_STATES:
                del self._used[next(iter(self._used))]
            self._used[state] = until

    def _person(self, code: str, state: str) -> Person:
        tokens = self._ask(
            "POST",
            self._endpoint("token_endpoint"),
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": self._redirect,
                "code_verifier": self._seal.mac("verifier", state.encode()),
            },
            self._client_headers(),
        )
        claims = self.claims(
            str(tokens.get("id_token", "")), self._seal.mac("nonce", state.encode())
        )
        wanted = {"email", self.options.groups_claim} - claims.keys()
        if wanted and "userinfo_endpoint" in self._document() and "access_token" in tokens:
            bearer = {"authorization": f"Bearer {tokens['access_token']}"}
            more = self._ask("GET", self._endpoint("userinfo_endpoint"), None, bearer)
            if more.get("sub") != claims["sub"]:
                raise LogInError("the provider speaks of two people at once")
            claims = {**more, **claims}
        given = claims.get(self.options.groups_claim, [])
        texts = given if isinstance(given, list) else [given]
        groups = tuple(sorted({text for text in map(str, texts) if text in self.options.groups}))
        name = _name(claims)
        if not groups:
            raise LogInError(
                f"{name} is in no group with rights here: an administrator gives them in the file "
                "of --oidc"
            )
        return Person(name, groups)

    def claims(self, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token. Raises LogInError unless the provider has made it, for
        this console, for the login with this nonce, and it is valid now."""
        try:
            claims = self._verified(token)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise LogInError(
                f"the provider's ID token is not valid: {type(error).__name__}"
            ) from None
        now = self._clock()
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        client = self.options.client_id
        for wrong, what in (
            (claims.get("iss") != self.options.issuer, "it is from another provider"),
            (client not in audiences, "it is for another application"),
            (
                claims.get("azp", client) != client or (len(audiences) > 1 and "azp" not in claims),
                "it was made for another application",
            ),
            (not _is_time(claims.get("exp")), "it has no end"),
            (_is_time(claims.get("exp")) and claims["exp"] + LEEWAY_SECONDS <= now, "it expired"),
            (
                not _is_time(claims.get("iat"))
                or abs(now - claims["iat"]) > ISSUED_SECONDS + LEEWAY_SECONDS,
                "it was not made now",
            ),
            (_is_time(claims.get("nbf")) and claims["nbf"] > now + LEEWAY_SECONDS, "it is early"),
            (
                not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()),
                "it belongs to another login",
            ),
            (not isinstance(claims.get("sub"), str) or not claims["sub"], "it names no person"),
        ):
            if wrong:
                raise LogInError(f"the provider's ID token is not valid: {what}")
        return claims

    def _verified(self, token: str) -> dict[str, Any]:
        try:
            return jwt.decode(token, self._key_set(KEYS_SECONDS), algorithms=ALGORITHMS).claims
        except (JoseError, ValueError):
            keys = self._key_set(KEYS_LEAST_SECONDS)  # the provider may have a new key
            return jwt.decode(token, keys, algorithms=ALGORITHMS).claims

    def _key_set(self, most_seconds: float) -> KeySet:
        with self._lock:
            if self._monotonic() - self._keys.read_at <= most_seconds:
                return self._keys.keys
        document = self._ask("GET", self._endpoint("jwks_uri"))
        try:
            keys = KeySet.import_key_set(document)  # type: ignore[arg-type]  # checked by it
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise UnavailableError(
                f"the keys of {self.options.issuer} cannot be used: {type(error).__name__}"
            ) from None
        with self._lock:
            self._keys = _Keys(keys, self._monotonic())
        return keys

    def _document(self) -> Mapping[str, Any]:
        with self._lock:
            provider = self._provider
        if provider:
            return provider
        issuer = self.options.issuer
        url = issuer.rstrip("/") + "/.well-known/openid-configuration"
        provider = self._ask("GET", url)
        if provider.get("issuer") != issuer:
            raise UnavailableError(f"the provider at {url} is another one than {issuer}")
        with self._lock:
            self._provider = provider
        return provider

    def _endpoint(self, name: str) -> str:
        url = str(self._document().get(name, ""))
        try:
            check_issuer(url.partition("?")[0])
        except ValueError:
            raise UnavailableError(
                f"the discovery document of {self.options.issuer} has no usable {name}"
            ) from None
        return url

    def _client_headers(self) -> dict[str, str]:
        """Return the proof of this client (RFC 6749, 2.3.1)."""
        pair = urlencode({self.options.client_id: self._secret}).replace("=", ":", 1)
        return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def _ask(
        self,
        method: str,
        url: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] = {},
    ) -> dict[str, Any]:
        """Return the JSON object that the provider answers with. Raises UnavailableError, without
        anything of the question or the answer."""
        where = f"the login provider {self.options.issuer}"
        try:
            response = self._http.request(
                method,
                url,
                body=urlencode(form) if form is not None else None,
                headers={
                    "accept": "application/json",
                    **({"content-type": "application/x-www-form-urlencoded"} if form else {}),
                    **headers,
                },
                timeout=urllib3.Timeout(total=ANSWER_SECONDS),
                redirect=False,
                preload_content=False,
            )
            try:
                data = response.read(ANSWER_BYTES + 1)
            finally:
                response.close()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnavailableError(f"{where} does not answer: {type(error).__name__}") from None
        if response.status in (400, 401, 403) and method == "POST":
            log.warning("%s refused a code: HTTP %d", where, response.status)
            raise LogInError(f"{where} has refused the login: log in again")
        if response.status != 200 or len(data) > ANSWER_BYTES:
            raise UnavailableError(f"{where} answered with HTTP {response.status}")
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UnavailableError(f"{where} answered without a JSON object")
        return answer


def _name(claims: Mapping[str, Any]) -> str:
    """Return the name in the audit: the verified e-mail address, else the subject."""
    email = claims.get("email")
    verified = claims.get("email_verified", True) in (True, "true")
    text = email if isinstance(email, str) and email and verified else claims["sub"]
    shown = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return f"oidc:{shown[:NAME_CHARACTERS]}"


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
