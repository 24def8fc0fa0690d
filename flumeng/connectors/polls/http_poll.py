"""HTTP poll: requests page by page, starting from the last stored state. Answers hold whole pages;
unstored pages are requested again. A due time first continues the pages of a failed one; if the
server refuses that, the due time starts with its own first page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Literal
from urllib.parse import quote, quote_plus, unquote_plus, urlsplit

import msgspec
import pyarrow as pa

from flumeng.connectors.polls import http_records
from flumeng.connectors.polls.http_auth import auth_of
from flumeng.connectors.polls.http_client import (
    HttpClient,
    Reply,
    Request,
    UnauthorizedError,
    joined,
)
from flumeng.connectors.polls.http_options import HttpPollSource, TrackField
from flumeng.connectors.polls.json_paths import parse, scalar, value_at
from flumeng.connectors.polls.poll import MOST_STATE_BYTES, Answer
from flumeng.connectors.polls.templates import Template, iso
from flumeng.platform import secrets
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError
from flumeng.platform.options.patterns import SECRET
from flumeng.platform.options.texts import time_of

ANSWER_BYTES = 8 * 2**20
"""An answer ends with the page that exceeds this."""
ANSWER_SECONDS = 30.0
ANSWER_PAGES = 1_000
PAUSES_SECONDS = (0.5, 1.5)
"""Pauses before retries of later pages, per answer: waiting holds a thread that polls share."""
MOST_PAGES = 100_000
MOST_AT_BYTES = 8 * 1024
MOST_VALIDATOR = 1_024
SECRET_CHARACTERS = 6
"""States are not searched for shorter secrets, which occur in unrelated texts by chance."""
VALIDATORS = {"etag": "If-None-Match", "last-modified": "If-Modified-Since"}


@dataclass(frozen=True)
class Chain:
    """The unread pages of the due time ``due``. ``at``: the next page's number, offset, cursor or
    URL, depending on ``by``. ``pages`` and ``records``: numbers of those read; ``digest``: of the
    last page read; ``reached``: the tracked value after it. ``anew``: this chain replaces one that
    the server refused to continue."""

    due: str
    by: str
    at: str = ""
    pages: int = 0
    records: int = 0
    digest: str = ""
    reached: http_records.Tracked = field(default_factory=http_records.Tracked)
    anew: bool = False

    def __post_init__(self) -> None:
        if self.by in ("page", "offset") and not (self.at.isascii() and self.at.isdigit()):
            raise ValueError("not a number")


@dataclass(frozen=True)
class State:
    """State of a poll. ``path`` and ``type``: of the tracked value, or "". ``until``: the latest
    `{due}` whose pages were all read; ``reach``: the tracked value then. ``validators``:
    conditional headers for the request with the digest ``asked``."""

    v: Literal[1]
    path: str = ""
    type: str = ""
    until: str = ""
    reach: http_records.Tracked = field(default_factory=http_records.Tracked)
    asked: str = ""
    validators: Mapping[str, str] = field(default_factory=dict)
    chain: Chain | None = None

    def __post_init__(self) -> None:
        if self.until:
            time_of(self.until)
        if self.chain is not None:
            time_of(self.chain.due)

    @classmethod
    def of(cls, text: str, track: TrackField | None = None) -> State:
        """Parse a state. Raises CorruptError, UserError when another value was tracked."""
        try:
            state = msgspec.json.decode(text, type=cls) if text else cls(1)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CorruptError(
                "the state of the poll is not one of http_poll: if the source was changed, revert "
                "that, or use another flow"
            ) from error
        if track is None:
            return state
        if state.path and (state.path, state.type) != (track.path, track.type):
            raise UserError(
                f"records are tracked by {state.path} as a {state.type}, which cannot be changed: "
                "revert the change of `track`, or use another flow that begins there"
            )
        return replace(state, path=track.path, type=track.type)

    def to_text(self) -> str:
        """Return the state as JSON. Raises UserError when it is too large for ZooKeeper."""
        text: bytes = msgspec.json.encode(self)
        if len(text) > MOST_STATE_BYTES:
            raise UserError(f"the state of the poll has {len(text)} bytes: too many for ZooKeeper")
        return text.decode()


class HttpPoll:
    def __init__(self, options: HttpPollSource) -> None:
        """Prepare all requests. Raises UserError when a secret is missing or invalid."""
        self._options = options
        paging = options.paging
        self._by = paging.by if paging else ""
        self._records_path = parse(options.records) if options.records is not None else ()
        self._next_path = parse(paging.path) if paging and paging.path is not None else ()
        self._headers = _headers(options)
        self._written = _writer(self._headers)
        query = options.query
        self._query = {name: Template(query[name], secrets.resolve) for name in query}
        self._body = None
        if options.body is not None:
            self._body = Template(options.body, lambda ref: self._written(secrets.resolve(ref)))
        self._secret_parameters = frozenset(name for name in query if SECRET.search(query[name]))
        self._hidden = tuple(map(secrets.resolve, _references(options)))
        self._auth = auth_of(options.auth, options.tls, options.timeout_seconds)
        self._tracker = http_records.Tracker(options.track) if options.track else None
        texts = [*self._query.values(), *([self._body] if self._body else [])]
        uses_last = any("last" in text.variables for text in texts)
        self._by_windows = self._tracker is None and uses_last
        self._client = HttpClient(
            options.url, options.redirect_to, options.tls, options.timeout_seconds
        )

    def ask(self, state: str, due: datetime) -> Answer:
        current = State.of(state, self._options.track)
        bodies: list[pa.BinaryArray] = []
        until, pauses = time.monotonic() + ANSWER_SECONDS, iter(PAUSES_SECONDS)
        try:
            while True:
                try:
                    more, current = self._retried_page(current, due, pauses)
                except FlumengError:
                    if not bodies:
                        raise
                    break
                bodies.append(more)
                full = sum(page.nbytes for page in bodies) >= ANSWER_BYTES
                late = time.monotonic() >= until
                if current.chain is None or full or late or len(bodies) >= ANSWER_PAGES:
                    break
        finally:
            self._client.rest()
        return Answer(pa.concat_arrays(bodies), self._text(current), current.chain is not None)

    def close(self) -> None:
        self._client.close()
        self._auth.close()

    def _retried_page(
        self, state: State, due: datetime, pauses: Iterator[float]
    ) -> tuple[pa.BinaryArray, State]:
        """Return ``_page(state, due)``; retry a later page after each of ``pauses``, unless the
        server requests a longer pause."""
        while True:
            try:
                return self._page(state, due)
            except UnavailableError:
                pause = next(pauses, 0.0) if state.chain is not None else 0.0
                if not pause or self._client.rest_seconds > pause:
                    raise
            self._client.wait(pause)

    def _page(self, state: State, due: datetime) -> tuple[pa.BinaryArray, State]:
        """Return the next records and the new state; requests nothing when no pages are left."""
        state = self._begun(state, due)
        chain = state.chain
        if chain is None:
            return http_records.NO_RECORDS, state
        try:
            bodies, state = self._requested(state, chain)
        except UserError:
            if chain.due == iso(due) or chain.anew:
                raise
            chain = replace(self._first_of(due, state), anew=True)
            bodies, state = self._requested(state, chain)
        if state.chain is None and chain.due != iso(due):
            state = self._begun(state, due)
        return bodies, state

    def _requested(self, state: State, chain: Chain) -> tuple[pa.BinaryArray, State]:
        moment = self._moment(time_of(chain.due))
        request = self._request(state, chain, moment)
        asked = _digest(_without(request.url, self._secret_parameters).encode())
        conditional = not self._by and request.method == "GET"
        if conditional and state.asked == asked:
            request = replace(request, own={**request.own, **state.validators})
        reply = self._reply(request)
        until = iso(max(time_of(state.until), moment) if state.until else moment)
        done = replace(state, until=until, chain=None)
        if reply.status == 304:
            return http_records.NO_RECORDS, done
        try:
            bodies, reached, following = self._read(state, chain, reply)
        except UserError as error:
            raise UserError(f"{self}: {error}") from error
        if following is not None:
            return bodies, replace(state, chain=replace(following, reached=reached))
        validators = _validators(reply) if conditional else {}
        asked = asked if validators else ""
        return bodies, replace(done, reach=reached, asked=asked, validators=validators)

    def _read(
        self, state: State, chain: Chain, reply: Reply
    ) -> tuple[pa.BinaryArray, http_records.Tracked, Chain | None]:
        """Return new records, their tracked value, and the next chain. Raises UserError."""
        text = http_records.text_of(reply.body, reply.headers.get("content-type", ""))
        if self._options.format == "json" and text.strip():
            text = http_records.json_of(text)
        bodies = http_records.records_of(text, self._options.format, self._records_path)
        following = self._following(chain, reply, text, len(bodies))
        if self._tracker is None:
            return bodies, following.reached if following else http_records.Tracked(), following
        return *self._tracker.pass_on(bodies, state.reach, chain.reached), following

    def _begun(self, state: State, due: datetime) -> State:
        """Return ``state`` with the chain to continue or a new one; none if ``due`` was covered."""
        if self._tracker is not None and not state.reach.last and self._options.start_from:
            state = replace(state, reach=http_records.Tracked(self._options.start_from))
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
        return due.astimezone(UTC) - timedelta(seconds=self._options.settle_seconds)

    def _reply(self, request: Request) -> Reply:
        """Send the request; retry it with a new token after HTTP 401."""
        try:
            return self._client.ask(self._with_auth(request))
        except UnauthorizedError:
            if not self._auth.forget():
                raise
        return self._client.ask(self._with_auth(request))

    def _with_auth(self, request: Request) -> Request:
        return replace(request, own={**request.own, **self._auth.headers()})

    def _request(self, state: State, chain: Chain, moment: datetime) -> Request:
        values: dict[str, str | datetime] = {"due": moment}
        last = state.reach.last if self._tracker is not None else self._windows_end(state)
        if last:
            values["last"] = last
        url, names = self._options.url, frozenset(self._query)
        if chain.at and self._by in ("link", "url"):
            url = chain.at
            names = self._secret_parameters if self._client.is_home(url) else frozenset()
        elif chain.at:
            values[self._by] = chain.at
        pairs = [
            f"{quote(name, safe='')}={quote(template.fill(values), safe='')}"
            for name, template in self._query.items()
            if name in names and template.variables <= values.keys()
        ]
        if pairs:
            url = f"{url}{'&' if urlsplit(url).query else '?'}{'&'.join(pairs)}"
        body = self._body.fill(values, self._written).encode() if self._body else None
        return Request(self._options.method, url, self._headers, body)

    def _windows_end(self, state: State) -> datetime | None:
        """Return the end of the last time window, for polls without ``track``; at first
        ``start_from``, if given."""
        text = state.until or self._options.start_from
        return time_of(text).astimezone(UTC) if text else None

    def _following(self, chain: Chain, reply: Reply, text: bytes, count: int) -> Chain | None:
        at = self._at(chain, reply, text, count)
        if not at:
            return None
        if len(at.encode()) > MOST_AT_BYTES:
            raise UserError("the reference to the next page is longer than 8 KiB")
        digest = _digest(text)
        if at == chain.at or (self._by in ("page", "offset") and digest == chain.digest):
            raise UserError("the server repeats the same page: check `paging`")
        if chain.pages + 1 >= MOST_PAGES:
            raise UserError(f"the answer has more than {MOST_PAGES} pages")
        records = chain.records + count
        return replace(chain, at=at, pages=chain.pages + 1, records=records, digest=digest)

    def _at(self, chain: Chain, reply: Reply, text: bytes, count: int) -> str:
        """Return the position of the next page; empty after the last one."""
        paging = self._options.paging
        if paging is None:
            return ""
        if paging.by in ("page", "offset"):
            if not count or (paging.size is not None and count < paging.size):
                return ""
            return str(int(chain.at) + 1 if paging.by == "page" else chain.records + count)
        if paging.by == "link":
            reference = http_records.next_link(reply.headers.get("link", ""))
        else:
            reference = self._named(text)
        if not reference or paging.by == "cursor":
            return reference or ""
        url = joined(reply.url, reference)
        self._client.require_allowed(url, "the next page")
        return _without(url, self._secret_parameters, self._auth.tokens)

    def _named(self, text: bytes) -> str | None:
        """Return the URL or cursor at `paging.path` in the answer."""
        value = value_at(text, self._next_path)
        if value is None or value in (b"false", b"0"):
            return None
        reference = scalar(value)
        if reference is None:
            raise UserError("the value at `paging.path` is neither a text nor a number")
        return reference

    def _text(self, state: State) -> str:
        """Return the state as text. Raises UserError when it contains a secret."""
        text = state.to_text()
        forms = (str, json.dumps, quote, quote_plus)
        secret = (*self._hidden, *self._auth.tokens)
        hidden = [value for value in secret if len(value) >= SECRET_CHARACTERS]
        if any(form(value).strip('"') in text for value in hidden for form in forms):
            raise UserError(f"{self}: the server's answer puts a secret into the poll's state")
        return text

    def __str__(self) -> str:
        return f"{self._options.method} {self._options.url.partition('?')[0]}"


def _headers(options: HttpPollSource) -> dict[str, str]:
    """Return configured headers with secrets, and defaults. Raises UserError."""
    own = secrets.filled(options.headers)
    for name, text in own.items():
        if not text.isascii() or not text.isprintable():
            raise UserError(f"http_poll: the value of headers.{name} is not printable ASCII")
    defaults = {"Accept": "application/json"} if options.format == "json" else {}
    if options.body is not None:
        defaults["Content-Type"] = "application/json"
    lower = {name.lower() for name in own}
    return {name: text for name, text in defaults.items() if name.lower() not in lower} | own


def _references(options: HttpPollSource) -> Iterator[str]:
    texts = [*options.headers.values(), *options.query.values(), options.body]
    if options.auth is not None:
        texts += [options.auth.password, options.auth.bearer]
        texts += [options.auth.oauth2.client_secret] if options.auth.oauth2 else []
    for text in filter(None, texts):
        yield from (match[0] for match in SECRET.finditer(text))


def _writer(headers: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that escapes text for the content type in ``headers``."""
    kind = next((text for name, text in headers.items() if name.lower() == "content-type"), "")
    if "json" in kind.lower():
        return lambda text: json.dumps(text)[1:-1]
    return quote_plus if "form-urlencoded" in kind.lower() else str


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:32]


def _validators(reply: Reply) -> dict[str, str]:
    given = {header: reply.headers.get(name, "") for name, header in VALIDATORS.items()}
    return {
        header: text
        for header, text in given.items()
        if text and len(text) <= MOST_VALIDATOR and text.isascii() and text.isprintable()
    }


def _without(url: str, names: frozenset[str], values: frozenset[str] = frozenset()) -> str:
    """Return ``url`` without parameters of these names or values; others stay verbatim."""
    base, mark, query = url.partition("?")
    kept = []
    for pair in query.split("&"):
        name, _, value = map(unquote_plus, pair.partition("="))
        if name not in names and value not in values:
            kept.append(pair)
    return f"{base}{mark}{'&'.join(kept)}"
