"""Asks a server over HTTP, page by page, and says where the next poll begins.

An answer holds whole pages. What was not kept is asked for again from the state before it; an
answer that ends in the middle of a due time goes on at its next page. When a due time fails there,
the next one first goes on with its pages: what came of them is kept, and would come again. If the
server does not know that place any more, it begins anew where the other had begun, once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from urllib.parse import quote, quote_plus, unquote_plus, urlsplit

import pyarrow as pa

from flumeng.connectors.polls import json_paths
from flumeng.connectors.polls.http_auth import Auth, auth_of
from flumeng.connectors.polls.http_body import text_of
from flumeng.connectors.polls.http_client import (
    HttpClient,
    Reply,
    Request,
    UnauthorizedError,
    joined,
)
from flumeng.connectors.polls.http_options import HttpPollSource
from flumeng.connectors.polls.http_records import json_of, next_link, records_of, scalar, value_at
from flumeng.connectors.polls.http_state import Chain, State
from flumeng.connectors.polls.http_tracking import Reach, Tracker
from flumeng.connectors.polls.json_paths import Step
from flumeng.connectors.polls.poll import Answer
from flumeng.connectors.polls.templates import Template, iso
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.options.moments import time_of
from flumeng.platform.options.patterns import SECRET

ANSWER_BYTES = 8 * 2**20
"""An answer ends with the page that makes it larger."""
ANSWER_SECONDS = 30.0
"""Or with the one that comes later."""
ANSWER_PAGES = 1_000
PAUSES_SECONDS = (0.5, 1.5)
"""In all that is waited within an answer, before a page behind others is asked for again. Who waits
longer keeps other polls from being asked."""
MOST_PAGES = 100_000
"""Of one due time."""
MOST_AT_BYTES = 8 * 1024
MOST_VALIDATOR = 1_024
SECRET_CHARACTERS = 6
"""A shorter secret is in many texts that have nothing to do with it."""
VALIDATORS = {"etag": "If-None-Match", "last-modified": "If-Modified-Since"}
LAST = Chain("", "")
_NONE = pa.array([], pa.binary())


@dataclass(frozen=True)
class Asked:
    """The texts of requests, with secrets in them."""

    query: Mapping[str, Template]
    body: Template | None
    headers: Mapping[str, str]
    written: Callable[[str], str]
    """How a variable is written into the body."""
    secret_parameters: frozenset[str]
    hidden: tuple[str, ...]
    """What must not come into a state."""

    def uses(self, variable: str) -> bool:
        texts = [*self.query.values(), *([self.body] if self.body else [])]
        return any(variable in text.variables for text in texts)

    @classmethod
    def of(cls, options: HttpPollSource) -> Asked:
        """Raises UserError."""
        headers = {"Accept": "application/json"} if options.format == "json" else {}
        if options.body is not None:
            headers["Content-Type"] = "application/json"
        for name, text in options.headers.items():
            headers = {key: one for key, one in headers.items() if key.lower() != name.lower()}
            headers[name] = SECRET.sub(lambda found: secrets.resolve(found[0]), text)
            if not headers[name].isascii() or not headers[name].isprintable():
                raise UserError(f"http_poll: the secret in headers.{name} is not printable ASCII")
        written = _writer(headers)
        body = None
        if options.body is not None:
            body = Template.of(options.body, lambda found: written(secrets.resolve(found)))
        return cls(
            {name: Template.of(text, secrets.resolve) for name, text in options.query.items()},
            body,
            headers,
            written,
            frozenset(name for name, text in options.query.items() if SECRET.search(text)),
            tuple(filter(_is_telling, map(secrets.resolve, _references(options)))),
        )


class HttpPoll:
    """See ``Poll``."""

    def __init__(self, options: HttpPollSource, asked: Asked, auth: Auth) -> None:
        self._options = options
        self._asked = asked
        self._auth = auth
        self._by = options.paging.by if options.paging else ""
        self._records = _steps(options.records)
        self._next = _steps(options.paging.path if options.paging else None)
        self._tracker = Tracker(options.track) if options.track else None
        self._by_windows = self._tracker is None and asked.uses("last")
        self._client = HttpClient(
            options.url, options.redirect_to, options.tls, options.timeout_seconds
        )

    @classmethod
    def of(cls, options: HttpPollSource) -> HttpPoll:
        """Raises UserError."""
        auth = auth_of(options.auth, options.tls, options.timeout_seconds)
        return cls(options, Asked.of(options), auth)

    def ask(self, state: str, due: datetime) -> Answer:
        found = State.of(state, self._options.track)
        bodies: list[pa.BinaryArray] = []
        until, pauses = time.monotonic() + ANSWER_SECONDS, iter(PAUSES_SECONDS)
        try:
            while True:
                try:
                    more, found = self._next_page(found, due, pauses)
                except FlumengError:
                    if not bodies:
                        raise
                    break
                bodies.append(more)
                full = sum(one.nbytes for one in bodies) >= ANSWER_BYTES
                late = time.monotonic() >= until
                if found.chain is None or full or late or len(bodies) >= ANSWER_PAGES:
                    break
        finally:
            self._client.rest()
        return Answer(pa.concat_arrays(bodies), self._text(found), found.chain is not None)

    def close(self) -> None:
        self._client.close()
        self._auth.close()

    def _next_page(
        self, state: State, due: datetime, pauses: Iterator[float]
    ) -> tuple[pa.BinaryArray, State]:
        """As ``_page``; a page behind others is asked for again after each of the ``pauses``, if
        the server does not want a longer one."""
        while True:
            try:
                return self._page(state, due)
            except UnavailableError:
                pause = next(pauses, 0.0) if state.chain is not None else 0.0
                if not pause or self._client.rest_seconds > pause:
                    raise
            self._client.wait(pause)

    def _page(self, state: State, due: datetime) -> tuple[pa.BinaryArray, State]:
        """The next records, and what comes behind them; nothing is asked for when there is no
        chain for it."""
        state = self._begun(state, due)
        chain = state.chain
        if chain is None:
            return _NONE, state
        try:
            bodies, state = self._asked_for(state, chain)
        except UserError:
            if chain.due == iso(due) or chain.anew:
                raise
            chain = replace(self._first_of(due, state), anew=True)
            bodies, state = self._asked_for(state, chain)
        if state.chain is None and chain.due != iso(due):
            state = self._begun(state, due)
        return bodies, state

    def _asked_for(self, state: State, chain: Chain) -> tuple[pa.BinaryArray, State]:
        """What is at the place of the chain, and what comes behind it."""
        moment = self._moment(time_of(chain.due))
        request = self._request(state, chain, moment)
        asked = _digest(_without(request.url, self._asked.secret_parameters).encode())
        conditional = not self._by and request.method == "GET"
        if conditional and state.asked == asked:
            request = replace(request, own={**request.own, **state.validators})
        reply = self._reply(request)
        done = replace(state, until=_latest(state.until, moment), chain=None)
        if reply.status == 304:
            return _NONE, done
        try:
            bodies, following = self._read(state, chain, reply)
        except UserError as error:
            raise UserError(f"{self}: {error}") from error
        if following.at:
            return bodies, replace(state, chain=following)
        validators = _validators(reply) if conditional else {}
        done = replace(done, reach=following.reached, asked=asked if validators else "")
        return bodies, replace(done, validators=validators)

    def _read(self, state: State, chain: Chain, reply: Reply) -> tuple[pa.BinaryArray, Chain]:
        """The records of a page that are new, and the chain behind it: at nothing after the last.

        Raises UserError.
        """
        text = self._text_of(reply)
        bodies = records_of(text, self._options.format, self._records)
        following = self._following(chain, reply, text, len(bodies))
        if self._tracker is None:
            return bodies, following
        bodies, reached = self._tracker.pass_on(bodies, state.reach, chain.reached)
        return bodies, replace(following, reached=reached)

    def _begun(self, state: State, due: datetime) -> State:
        """With a chain that goes on for this due time: one with pages that came already, or a new
        one; none when a window was asked for that goes up to there."""
        if self._tracker is not None and not state.reach.last and self._options.start_from:
            state = replace(state, reach=Reach(self._options.start_from))
        chain = state.chain
        if chain is not None and chain.by == self._by and (chain.pages or chain.due == iso(due)):
            return state
        end = self._windows_end(state) if self._by_windows else None
        if end is not None and self._moment(due) <= end:
            return replace(state, chain=None)
        return replace(state, chain=self._first_of(due, state))

    def _first_of(self, due: datetime, state: State) -> Chain:
        first = self._options.paging.first if self._options.paging else 1
        at = {"page": str(first), "offset": "0"}.get(self._by, "")
        return Chain(iso(due), self._by, at, reached=state.reach)

    def _moment(self, due: datetime) -> datetime:
        """`{due}` of a due time."""
        return due.astimezone(UTC) - timedelta(seconds=self._options.settle_seconds)

    def _reply(self, request: Request) -> Reply:
        """With a new token when the server does not take the one that there was."""
        try:
            return self._client.ask(self._with_auth(request))
        except UnauthorizedError:
            if not self._auth.forget():
                raise
        return self._client.ask(self._with_auth(request))

    def _with_auth(self, request: Request) -> Request:
        return replace(request, own={**request.own, **self._auth.headers()})

    def _request(self, state: State, chain: Chain, moment: datetime) -> Request:
        values: dict[str, str | datetime] = {"due": moment, **self._last(state)}
        if self._by in ("page", "offset", "cursor") and chain.at:
            values[self._by] = chain.at
        url, asked = self._options.url, self._asked
        if self._by in ("link", "url") and chain.at:
            url = chain.at
            secret = asked.secret_parameters if self._client.is_home(url) else frozenset()
        else:
            secret = None
        pairs = [
            f"{quote(name, safe='')}={quote(template.fill(values), safe='')}"
            for name, template in asked.query.items()
            if (secret is None or name in secret) and template.variables <= values.keys()
        ]
        if pairs:
            url = f"{url}{'&' if urlsplit(url).query else '?'}{'&'.join(pairs)}"
        body = None
        if asked.body is not None:
            body = asked.body.fill(values, asked.written).encode()
        return Request(self._options.method, url, asked.headers, body)

    def _last(self, state: State) -> dict[str, str | datetime]:
        if self._tracker is not None:
            return {"last": state.reach.last} if state.reach.last else {}
        end = self._windows_end(state)
        return {"last": end} if end is not None else {}

    def _windows_end(self, state: State) -> datetime | None:
        """Up to when all was asked for."""
        text = state.until or self._options.start_from
        return time_of(text).astimezone(UTC) if text else None

    def _text_of(self, reply: Reply) -> bytes:
        text = text_of(reply.body, reply.headers.get("content-type", ""))
        return json_of(text) if self._options.format == "json" and text.strip() else text

    def _following(self, chain: Chain, reply: Reply, text: bytes, count: int) -> Chain:
        at = self._at(chain, reply, text, count)
        if not at:
            return LAST
        if len(at.encode()) > MOST_AT_BYTES:
            raise UserError("what it says of the next page is longer than 8 KiB")
        digest = _digest(text)
        if at == chain.at or (self._by in ("page", "offset") and digest == chain.digest):
            raise UserError("it gives the same page again and again: look at `paging`")
        if chain.pages + 1 >= MOST_PAGES:
            raise UserError(f"it has more than {MOST_PAGES} pages")
        records = chain.records + count
        return replace(chain, at=at, pages=chain.pages + 1, records=records, digest=digest)

    def _at(self, chain: Chain, reply: Reply, text: bytes, count: int) -> str:
        """Where the next page is; empty when there is none."""
        paging = self._options.paging
        if paging is None:
            return ""
        if paging.by in ("page", "offset"):
            if not count or (paging.size is not None and count < paging.size):
                return ""
            return str(int(chain.at) + 1 if paging.by == "page" else chain.records + count)
        if paging.by == "link":
            found = next_link(reply.headers.get("link", ""))
        else:
            found = self._said(text)
        if not found or paging.by == "cursor":
            return found or ""
        url = joined(reply.url, found)
        self._client.require_allowed(url, "the next page")
        return _without(url, self._asked.secret_parameters, self._auth.tokens)

    def _said(self, text: bytes) -> str | None:
        """The URL or cursor that the answer names."""
        value = value_at(text, self._next)
        if value is None or value in (b"false", b"0"):
            return None
        found = scalar(value)
        if found is None:
            raise UserError("what is at `paging.path` is neither a text nor a number")
        return found

    def _text(self, state: State) -> str:
        """Raises UserError."""
        text = state.to_text()
        forms = (str, json.dumps, quote, quote_plus)
        hidden = (*self._asked.hidden, *filter(_is_telling, self._auth.tokens))
        if any(form(secret).strip('"') in text for secret in hidden for form in forms):
            raise UserError(f"{self}: what it says of the next page has a secret in it")
        return text

    def __str__(self) -> str:
        return f"{self._options.method} {self._options.url.partition('?')[0]}"


def _steps(path: str | None) -> tuple[Step, ...]:
    return json_paths.parse(path) if path is not None else ()


def _references(options: HttpPollSource) -> Iterator[str]:
    """To all of its secrets."""
    texts = [*options.headers.values(), *options.query.values(), options.body]
    if options.auth is not None:
        texts += [options.auth.password, options.auth.bearer]
        texts += [options.auth.oauth2.client_secret] if options.auth.oauth2 else []
    for text in filter(None, texts):
        yield from (found[0] for found in SECRET.finditer(text))


def _is_telling(secret: str) -> bool:
    return len(secret) >= SECRET_CHARACTERS


def _writer(headers: Mapping[str, str]) -> Callable[[str], str]:
    """How a text is written into a body of the type that the headers say."""
    lower = {name.lower(): text.lower() for name, text in headers.items()}
    kind = lower.get("content-type", "")
    if "json" in kind:
        return lambda text: json.dumps(text)[1:-1]
    return quote_plus if "form-urlencoded" in kind else str


def _latest(until: str, moment: datetime) -> str:
    return iso(max(time_of(until), moment) if until else moment)


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:32]


def _validators(reply: Reply) -> dict[str, str]:
    found = {header: reply.headers.get(name, "") for name, header in VALIDATORS.items()}
    return {
        header: text
        for header, text in found.items()
        if text and len(text) <= MOST_VALIDATOR and text.isascii() and text.isprintable()
    }


def _without(url: str, names: frozenset[str], values: frozenset[str] = frozenset()) -> str:
    """Without these parameters, and those with such a value; the others as they are written."""
    place, mark, query = url.partition("?")
    kept = []
    for one in query.split("&"):
        name, _, value = map(unquote_plus, one.partition("="))
        if name not in names and value not in values:
            kept.append(one)
    return f"{place}{mark}{'&'.join(kept)}"
