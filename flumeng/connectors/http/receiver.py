"""A receiver of requests over HTTP: sends one until it is answered, and says what answers mean."""

from __future__ import annotations

import email.utils
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from ssl import SSLCertVerificationError

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from flumeng.connectors.api.backoff import CONNECT_SECONDS, Backoff
from flumeng.connectors.http.sink_options import IDEMPOTENCY_KEY
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import excerpt

RETRY_SECONDS = 25.0
ANSWER_BYTES = 64 * 1024
"""Of a longer answer the rest is not read, and its connection is not used again."""
QUOTED_CHARACTERS = 200
CONNECTIONS = 4
PASSING = (408, 409, 425, 429)
"""Beside all from 500 on; 409 says that a request with this key is being done right now."""
UNAUTHORIZED = (401, 402, 403, 407)
DOWN = (502, 503, 504)
WRONG = (401, 402, 403, 404, 405, 406, 407, 410, 411, 415, 421, 426, 431, 451)
"""Are about the flow, and would be the answer to any request, as are redirections."""


class RefusedRequestError(FlumengError):
    """The receiver refuses what is in the request for good."""


class TooLargeError(RefusedRequestError):
    """A smaller request might be taken."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and what they have in common; the headers may hold secrets."""

    url: str
    method: str
    headers: tuple[tuple[str, str], ...]
    ca: str | None
    timeout_seconds: float

    def __str__(self) -> str:
        return f"{self.method} {self.url.partition('?')[0]}"


@dataclass(frozen=True)
class Answer:
    """``status`` is 0 when there was none. ``after_seconds``: it asks not to come again earlier."""

    status: int
    sentence: str
    after_seconds: float = 0.0


def backoff(patience_seconds: float | None) -> Backoff:
    """For the requests of one split."""
    return Backoff(RETRY_SECONDS, patience_seconds)


def send(endpoint: Endpoint, body: bytes, key: str, pauses: Backoff) -> None:
    """Return when the receiver has taken it. It may have had it before, when an answer was lost.

    Raises RefusedRequestError, UnavailableError, UserError.
    """
    while True:
        answer = _ask(endpoint, body, key)
        if 200 <= answer.status < 300:
            pauses.progressed()
            return
        _require_passing(endpoint, answer)
        error = UnavailableError(f"{endpoint}: {answer.sentence}")
        pauses.pause(error, least_seconds=answer.after_seconds)


def reach(endpoint: Endpoint) -> None:
    """Asks with HEAD whether somebody answers, and would not refuse the headers.

    Many receivers know no HEAD, so any other answer is good. Raises UnavailableError, UserError.
    """
    answer = _ask(replace(endpoint, method="HEAD"), None, "")
    sentence = f"{endpoint}: {answer.sentence}"
    if answer.status in UNAUTHORIZED:
        raise UserError(sentence)
    if answer.status in (0, *DOWN):
        raise UnavailableError(sentence)


def _require_passing(endpoint: Endpoint, answer: Answer) -> None:
    """Raises unless another time there may be another answer."""
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
        response = _pool(endpoint.ca).request(
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
        if isinstance(error, SSLError) and isinstance(error.args[0], SSLCertVerificationError):
            raise UserError(f"{endpoint}: its certificate is not trusted: {error}") from error
        return Answer(0, f"no answer: {error}")


def _read(response: urllib3.BaseHTTPResponse) -> Answer:
    text = response.read(ANSWER_BYTES).decode("utf-8", "replace")
    if response.read(1):
        response.close()
    said = excerpt(" ".join(text.split()), QUOTED_CHARACTERS)
    sentence = f"HTTP {response.status} {response.reason or ''}".rstrip()
    return Answer(
        response.status,
        f"{sentence}: {said}" if said else sentence,
        _after_seconds(response.headers.get("Retry-After", "")),
    )


def _after_seconds(text: str) -> float:
    """What ``Retry-After`` says: seconds, or a moment."""
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0


@lru_cache
def _pool(ca: str | None) -> urllib3.PoolManager:
    """The connections of this process; those that a receiver has closed are opened anew."""
    try:
        return urllib3.PoolManager(maxsize=CONNECTIONS, ca_certs=ca, cert_reqs="CERT_REQUIRED")
    except OSError as error:
        raise UserError(f"http: cannot read {ca}: {error.strerror}") from error
