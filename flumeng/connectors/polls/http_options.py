"""The options of the source ``http_poll``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from flumeng.config.client_tls import ClientTls
from flumeng.config.component import Guarantee
from flumeng.connectors.polls.json_paths import check_path, check_single
from flumeng.connectors.polls.options import (
    Answers,
    KeepsAnswers,
    Schedule,
    answers_option,
    schedule_option,
)
from flumeng.connectors.polls.templates import Template, unknown
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.patterns import SECRET
from flumeng.platform.options.texts import check_url, time_of, with_port

Format = Literal["json", "ndjson", "lines", "text"]
PagedBy = Literal["link", "url", "cursor", "page", "offset"]
TrackedType = Literal["time", "number", "text"]
_OURS = frozenset(
    {
        "accept-encoding", "connection", "content-length", "host", "if-modified-since",
        "if-none-match", "te", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


def check_polled(text: str) -> None:
    check_url(text)
    if "{" in text or "}" in text:
        raise ValueError("expected nothing in braces: variables go into `query`")


def check_header(name: str) -> None:
    if not _HEADER.fullmatch(name):
        raise ValueError("expected the name of a header, like Accept")
    if name.lower() in _OURS:
        raise ValueError("flumeng sets this header itself")


@dataclass(frozen=True, kw_only=True)
class OAuth2:
    """A token by the grant `client_credentials`, kept until it expires."""

    token_url: str = option(
        doc="The URL of tokens.", check=check_polled, example="https://login.example/oauth/token"
    )
    client_id: str = option(doc="The id of the client.", example="flumeng")
    client_secret: str = option(
        doc="The client's secret.", secret=True, example="${secret:api-client}"
    )
    credentials_in: Literal["header", "body"] = option(
        doc="Where both are sent: in the header `Authorization`, or in the form.", default="header"
    )
    parameters: Mapping[str, str] = option(
        doc="Further parameters in the form.", example="{scope: logs.read}", factory=dict
    )


@dataclass(frozen=True, kw_only=True)
class HttpAuth:
    """The client: a user with a password, the bearer of a token, or a client of OAuth 2."""

    username: str | None = option(doc="The user.", example="flumeng", default=None)
    password: str | None = option(
        doc="The user's password.", secret=True, example="${secret:api-password}", default=None
    )
    bearer: str | None = option(
        doc="A token that does not expire.",
        secret=True,
        example="${secret:api-token}",
        default=None,
    )
    oauth2: OAuth2 | None = option(doc="Tokens by client credentials.", default=None)

    def problems(self) -> Iterator[tuple[str, str]]:
        if (self.username is None) != (self.password is None):
            yield "", "expected username and password together"
        ways = [way for way in (self.username, self.bearer, self.oauth2) if way is not None]
        if len(ways) != 1:
            yield "", "expected one of username with password, bearer, and oauth2"
        if self.username is not None and ":" in self.username:
            yield "username", "expected a user without a colon"


@dataclass(frozen=True, kw_only=True)
class Paging:
    """How the pages after the first are requested, up to the last; all under one due time."""

    by: PagedBy = option(
        doc='`link`: the URL in the header `Link` with `rel="next"` (RFC 8288). `url`: the URL at '
        "`path`. `cursor`: `{cursor}` is the value at `path`. `page`: `{page}` is the number of "
        "the page. `offset`: `{offset}` is the number of records before it."
    )
    path: str | None = option(
        doc="The path of the next URL or cursor in an answer of JSON. The last page has none "
        "there: nothing, null, false, 0 or an empty text.",
        check=check_single,
        example="meta.next_cursor",
        default=None,
    )
    first: int = option(doc="The number of the first page.", between=(0, 1_000_000), default=1)
    size: int | None = option(
        doc="With `page` and `offset`: a page of fewer records is the last one. Without it the "
        "last page is one without records, which takes one more request.",
        between=(1, 1_000_000),
        default=None,
    )

    @property
    def variable(self) -> str | None:
        """The variable that a request must contain."""
        return self.by if self.by in ("cursor", "page", "offset") else None

    def problems(self) -> Iterator[tuple[str, str]]:
        if (self.by in ("url", "cursor")) != (self.path is not None):
            yield "", "expected path with by: url and by: cursor, and only there"
        if self.size is not None and self.by not in ("page", "offset"):
            yield "size", "expected only with by: page and by: offset"


@dataclass(frozen=True, kw_only=True)
class TrackField:
    """A value that grows from record to record, like the time of the last change."""

    path: str = option(
        doc="The path of the value in a record of JSON. A record without it always passes.",
        check=check_single,
        example="updated_at",
    )
    type: TrackedType = option(
        doc="The order of values: as times of ISO 8601 (UTC without a zone), as numbers, or "
        "letter by letter."
    )


@dataclass(frozen=True, kw_only=True)
class HttpPollSource(KeepsAnswers):
    """Polls a URL at the due times of a schedule; the answers become events.

    In `query` and `body`, `{due}` is the due time and `{last}` how far the last answer reached: the
    greatest value of `track`, without it the `{due}` of that time. Times are ISO 8601 in UTC, or in
    the formats of `{due:unix}`, `{due:unix_ms}` and `{due:%Y-%m-%d}`.
    """

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})
    poll: ClassVar[str] = "flumeng.connectors.polls.http_poll:HttpPoll"

    url: str = option(
        doc="The URL to poll.", check=check_polled, example="https://api.example/v1/events"
    )
    method: Literal["GET", "POST"] = option(doc="The method of requests.", default="GET")
    query: Mapping[str, str] = option(
        doc="Parameters after those of `url`, with variables and references to secrets. One is "
        "left out while a variable in it has no value.",
        example='{since: "{last}", until: "{due}", limit: "100"}',
        factory=dict,
    )
    headers: Mapping[str, str] = option(
        doc="Headers of each request; a value may contain references to secrets.",
        check=check_header,
        example='{X-Api-Key: "${secret:api-key}"}',
        factory=dict,
    )
    body: str | None = option(
        doc="The body of a POST, with variables and references to secrets: JSON, unless a header "
        "`Content-Type` says otherwise. A variable without a value is an empty text.",
        example='{"from": "{last}", "to": "{due}"}',
        default=None,
    )
    auth: HttpAuth | None = option(doc="The credentials of requests.", default=None)
    tls: ClientTls | None = option(
        doc="Settings of TLS, where the host's authorities are not enough.", default=None
    )
    timeout_seconds: float = option(
        doc="Time limit of a request until its whole answer has arrived.",
        between=(0.1, 60),
        default=30.0,
    )
    redirect_to: tuple[str, ...] = option(
        doc="URLs of other servers below which redirections and next pages may lead; these get "
        "neither `auth` nor `headers`.",
        check=check_polled,
        between=(0, 20),
        example='["https://cdn.example/exports"]',
        default=(),
    )
    format: Format = option(
        doc="The format. An event is a record of JSON (`json`), a line (`lines`, or `ndjson` "
        "without the empty ones), or a whole answer (`text`).",
        default="json",
    )
    records: str | None = option(
        doc="The path of the records in JSON: the elements of an array there, or the object there; "
        "none if it is null. A `?` behind a step makes it optional. By default the whole answer.",
        check=check_path,
        example="data.items",
        default=None,
    )
    paging: Paging | None = option(doc="The pages of an answer.", default=None)
    track: TrackField | None = option(
        doc="The value of `{last}`. A record with a lower value is dropped, as is one with the "
        "same value that came before.",
        default=None,
    )
    start_from: str | None = option(
        doc="The first value of `{last}`; without `track` a time.",
        example="2026-11-22T08:00:00Z",
        default=None,
    )
    settle_seconds: float = option(
        doc="`{due}` is this long before the due time: for servers where records show up late.",
        between=(0, 86_400),
        default=0.0,
    )
    schedule: Schedule = schedule_option()
    answers: Answers = answers_option()

    @property
    def templates(self) -> Mapping[str, str]:
        """The texts with variables, by option."""
        texts = {f"query.{name}": text for name, text in self.query.items()}
        return texts if self.body is None else {**texts, "body": self.body}

    def needs(self) -> Iterator[Need]:
        urls = [self.url, *self.redirect_to]
        if self.auth is not None and self.auth.oauth2 is not None:
            urls.append(self.auth.oauth2.token_url)
        for url in urls:
            yield "input", with_port(url)
        if self.tls is not None:
            yield from self.tls.needs()
        yield "output", self.answers.path

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, value in self.headers.items():
            if name.lower() in _SECRET and not SECRET.search(value):
                yield f"headers.{name}", "expected a reference to a secret, like ${secret:NAME}"
            if name.lower() == "authorization" and self.auth is not None:
                yield f"headers.{name}", "expected either this header or auth"
            if not value.isascii() or not value.isprintable():
                yield f"headers.{name}", "expected printable ASCII characters"
        if self.body is not None and self.method != "POST":
            yield "body", "expected with method: POST"
        if self.tls is not None and urlsplit(self.url).scheme != "https":
            yield "tls", f"expected https in {self.url}"
        yield from self._problems_of_json()
        yield from self._problems_of_templates()

    def _problems_of_json(self) -> Iterator[tuple[str, str]]:
        if self.format != "json" and self.records is not None:
            yield "records", "expected only with format: json"
        if self.format not in ("json", "ndjson") and self.track is not None:
            yield "track", "expected with format: json or ndjson, whose records have fields"
        if self.paging is not None and self.paging.path and self.format != "json":
            yield "paging", f"by: {self.paging.by} needs format: json"
        if self.start_from is None:
            return
        if self.track is None or self.track.type == "time":
            try:
                time_of(self.start_from)
            except ValueError:
                yield "start_from", "expected a time with its zone, like 2026-11-22T08:00:00Z"
        elif self.track.type == "number" and not re.fullmatch(
            r"-?[0-9]{1,100}(\.[0-9]{1,100})?", self.start_from, re.ASCII
        ):
            yield "start_from", "expected a number, as track.type says"

    def _problems_of_templates(self) -> Iterator[tuple[str, str]]:
        used: set[str] = set()
        needed = self.paging.variable if self.paging else None
        for option_name, text in self.templates.items():
            if option_name != "body" and (braces := unknown(text)):
                yield option_name, f"unknown variable {braces}: expected {{last}} or {{due}}"
            try:
                template = Template(text)
            except ValueError as error:
                yield option_name, str(error)
                continue
            used |= template.variables
            for name in sorted(template.variables - {"last", "due", needed}):
                yield option_name, f"{{{name}}} needs paging with by: {name}"
            if self.track is not None and re.search(r"\{last:", text):
                yield (
                    option_name,
                    "{last} is the unchanged value of track: expected no format of a time",
                )
        if needed is not None and needed not in used:
            yield "paging", f"expected {{{needed}}} in query or body"
        if self.start_from is not None and self.track is None and "last" not in used:
            yield "start_from", "expected with {last} in query or body, or with track"

    def arrival(self) -> str:
        kept = "each answer is kept before it is read, and read once"
        if self.track is not None:
            return f"{kept}; a record that the server sends again is dropped"
        return f"{kept}; a record that the server sends twice arrives twice"
