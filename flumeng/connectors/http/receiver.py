"""Sends requests to an HTTP receiver with retries, and interprets the answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from ssl import SSLCertVerificationError, create_default_context

import urllib3
from urllib3.exceptions import HTTPError, InvalidHeader, SSLError

from flumeng.connectors.api.backoff import CONNECT_SECONDS, Backoff
from flumeng.connectors.http.sink_options import IDEMPOTENCY_KEY
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import excerpt, without_connection

RETRY_SECONDS = 25.0
ANSWER_BYTES = 64 * 1024
"""Longer answers are not read to the end; the connection is closed instead."""
QUOTED_CHARACTERS = 200
CONNECTIONS = 4
PASSING = (408, 409, 425, 429)
"""Statuses to retry, as from 500 on. 409: a request with this key is in progress."""
UNAUTHORIZED = (401, 402, 403, 407)
DOWN = (502, 503, 504)
WRONG = (401, 402, 403, 404, 405, 406, 407, 410, 411, 415, 421, 426, 431, 451)
"""Statuses that every request would get: the configuration is wrong, as with redirections."""


class RefusedRequestError(FlumengError):
    """The receiver rejects the events of a request permanently."""


class TooLargeError(RefusedRequestError):
    """The request is too large; a smaller one may be accepted."""


@dataclass(frozen=True)
class Endpoint:
    """URL, method and headers that all requests share; headers may contain secrets. ``ca``: a file
    of trusted certificates, ``ca_data``: their PEM text."""

    url: str
    method: str
    headers: tuple[tuple[str, str], ...]
    ca: str | None
    timeout_seconds: float
    ca_data: str | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.url.partition('?')[0]}"


@dataclass(frozen=True)
class Answer:
    """An answer. ``status`` 0: there was none. ``after_seconds``: the value of ``Retry-After``."""

    status: int
    sentence: str
    after_seconds: float = 0.0


def send(endpoint: Endpoint, body: bytes, key: str, pauses: Backoff) -> None:
    """Send the request until the receiver accepts it; after a lost answer it may be accepted twice.
    Raises RefusedRequestError, UnavailableError, UserError."""
    while True:
        answer = _ask(endpoint, body, key)
        if 200 <= answer.status < 300:
            pauses.progressed()
            return
        _require_passing(endpoint, answer)
        error = UnavailableError(f"{endpoint}: {answer.sentence}")
        pauses.pause(error, least_seconds=answer.after_seconds)


def reach(endpoint: Endpoint) -> None:
    """Check with HEAD that the receiver answers and accepts the headers. Other errors are ignored,
    since many servers do not support HEAD. Raises UnavailableError, UserError."""
    answer = _ask(replace(endpoint, method="HEAD"), None, "")
    sentence = f"{endpoint}: {answer.sentence}"
    if answer.status in UNAUTHORIZED:
        raise UserError(sentence)
    if answer.status in (0, *DOWN):
        raise UnavailableError(sentence)


def _require_passing(endpoint: Endpoint, answer: Answer) -> None:
    """Return when a retry may get another answer, otherwise raise the error."""
    if answer.status == 0 or answer.status in PASSING or answer.status >= 500:
        return
    if answer.status < 400 or answer.status in WRONG:
        raise UserError(f"{endpoint}: {answer.sentence}")
    if answer.status == 413:
        raise TooLargeError(answer.sentence)
    raise RefusedRequestError(answer.sentence)


def _ask(endpoint: Endpoint, body: bytes | None, key: str) -> Answer:
    keyed = {IDEMPOTENCY_KEY: key} if body is not None else {}
    try:
        response = _pool(endpoint.ca, endpoint.ca_data).request(
            endpoint.method,
            endpoint.url,
            body=body,
            headers=dict(endpoint.headers) | keyed,
            timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=endpoint.timeout_seconds),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        with response:
            return _read(response)
    except (HTTPError, OSError) as error:
        cause = error.args[0] if isinstance(error, SSLError) else None
        if isinstance(cause, SSLCertVerificationError):
            raise UserError(f"{endpoint}: its certificate is not trusted: {error}") from error
        if cause is not None and endpoint.ca is not None:
            _require_certificates(endpoint.ca)
        return Answer(0, f"no answer: {without_connection(error)}")


def _require_certificates(ca: str) -> None:
    """Raise UserError for a file that cannot be read, or has no certificates."""
    try:
        create_default_context(cafile=ca)
    except OSError as error:
        raise UserError(f"http: cannot read {ca}: {error.strerror}") from error


def _read(response: urllib3.BaseHTTPResponse) -> Answer:
    text = response.read(ANSWER_BYTES).decode("utf-8", "replace")
    if response.read(1):
        response.close()
    quoted = excerpt(" ".join(text.split()), QUOTED_CHARACTERS)
    sentence = f"HTTP {response.status} {response.reason or ''}".rstrip()
    return Answer(
        response.status,
        f"{sentence}: {quoted}" if quoted else sentence,
        _after_seconds(response.headers.get("Retry-After", "")),
    )


def _after_seconds(text: str) -> float:
    try:
        return urllib3.Retry().parse_retry_after(text)
    except (InvalidHeader, ValueError, OverflowError):
        return 0.0


@lru_cache
def _pool(ca: str | None, ca_data: str | None) -> urllib3.PoolManager:
    return urllib3.PoolManager(
        maxsize=CONNECTIONS, ca_certs=ca, ca_cert_data=ca_data, cert_reqs="CERT_REQUIRED"
    )
