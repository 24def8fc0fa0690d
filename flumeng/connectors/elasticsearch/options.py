"""The options of the sink ``elasticsearch``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from flumeng.config.column_kinds import Columns
from flumeng.config.component import ExactlyOnce, SinkOptions
from flumeng.config.functions import ATOMIC, BINARY
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.patterns import TIME_PATTERNS
from flumeng.platform.options.problems import nearest
from flumeng.platform.options.quantities import check_absolute
from flumeng.platform.options.texts import with_port

MIB = 2**20
INDEX_PART = re.compile(r"(%[YmdHM])|\{(\w+)\}")
"""A pattern in an index name: a part of the time, or a column."""
RESERVED = frozenset(
    (
        "_data_stream_timestamp",
        "_field_names",
        "_id",
        "_ignored",
        "_ignored_source",
        "_index",
        "_nested_path",
        "_primary_term",
        "_routing",
        "_seq_no",
        "_source",
        "_tier",
        "_version",
    )
)
"""Names of metadata fields."""
_IN_INDEX = ATOMIC - {BINARY}
_FIXED = re.compile(r"[a-z0-9._-]*")


def check_host(text: str) -> None:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError('expected a URL, like "https://search.example:9200"')
    try:
        _ = url.port
    except ValueError as error:
        raise ValueError("expected a port from 1 to 65535") from error
    if url.username or url.password:
        raise ValueError("expected no credentials in the URL: use api_key or username")
    if url.query or url.fragment:
        raise ValueError("expected a URL without a query")


def check_index(text: str) -> None:
    fixed = INDEX_PART.sub("", text)
    if not _FIXED.fullmatch(fixed):
        allowed = f"a-z 0-9 . _ -, the patterns {' '.join(TIME_PATTERNS)} and {{column}}"
        raise ValueError(f"expected only {allowed}")
    if not re.match("[a-z0-9.]", text) or text in (".", ".."):
        raise ValueError('expected a lower-case letter or a digit first, like "logs-%Y.%m.%d"')
    if len(text) > 100:
        raise ValueError("expected at most 100 characters")


def check_fingerprint(text: str) -> None:
    if not re.fullmatch("[0-9a-fA-F]{64}", text.replace(":", "")):
        raise ValueError("expected the SHA-256 of a certificate, 64 hexadecimal digits")


@dataclass(frozen=True)
class Elasticsearch(SinkOptions):
    """Indexes each event as a document. An event that is written again replaces itself: its
    `_id` is its journal and its number there; its index depends on its own time."""

    implementation: ClassVar[str] = "flumeng.connectors.elasticsearch.sink:ElasticsearchSink"

    hosts: tuple[str, ...] = option(
        doc="URLs of the cluster's nodes; requests go to them in turn.",
        check=check_host,
        minimum=1,
        example='["https://search1.example:9200", "https://search2.example:9200"]',
    )
    index: str = option(
        doc="The index, or with `data_stream` the data stream. `%Y %m %d %H %M` are of the "
        "event's time in UTC, `{column}` is a column in lower case, with `-` for illegal "
        "characters.",
        check=check_index,
        example='"logs-{app}-%Y.%m.%d"',
    )
    data_stream: bool = option(
        doc="`index` names a data stream. The event's time becomes `@timestamp`. An event that "
        "is written again after a rollover is duplicated.",
        default=False,
    )
    id: Literal["event", "none"] = option(
        doc="`event`: the `_id` is that of the event, so a repeated event replaces itself; "
        "`none`: the cluster assigns one, which indexes faster.",
        default="event",
    )
    op: Literal["index", "create"] = option(
        doc="For a document that exists already: `index` replaces it, `create` keeps it.",
        default="index",
    )
    pipeline: str | None = option(
        doc="An ingest pipeline of the cluster.", example="geoip", default=None
    )
    routing: str | None = option(
        doc="The column that routes documents to shards.", example="host", default=None
    )
    template: bool = option(
        doc="Install an index template with types for flumeng's columns, unless one of that name "
        "exists.",
        default=False,
    )

    api_key: str | None = option(
        doc="An API key, as the cluster shows it encoded.",
        secret=True,
        example='"${secret:search-api-key}"',
        default=None,
    )
    username: str | None = option(doc="The user name.", example="flumeng", default=None)
    password: str | None = option(
        doc="The user's password.", secret=True, example='"${secret:search-password}"', default=None
    )
    ca: str | None = option(
        doc="The CA file for the cluster's certificates, on each collecting host; by default the "
        "host's own CAs.",
        check=check_absolute,
        example="/etc/flumeng/tls/search-ca.pem",
        default=None,
    )
    certificate: str | None = option(
        doc="The client certificate's file, on each collecting host.",
        check=check_absolute,
        example="/etc/flumeng/tls/flumeng.pem",
        default=None,
    )
    key: str | None = option(
        doc="The file of the client certificate's key.",
        check=check_absolute,
        example="/etc/flumeng/tls/flumeng.key",
        default=None,
    )
    fingerprint: str | None = option(
        doc="The SHA-256 of the cluster's certificate, instead of a CA.",
        check=check_fingerprint,
        example='"ab:cd:..."',
        default=None,
    )

    compression: Literal["gzip", "none"] = option(
        doc="The compression of requests.", default="none"
    )
    request_bytes: int = option(
        doc="Size limit of a request, before compression. Below it, the sink adapts the size to "
        "the cluster.",
        between=(64 * 1024, 100 * MIB),
        default=8 * MIB,
    )
    timeout: float = option(
        doc="Time limit for a response.", unit="seconds", between=(1, 600), default=30.0
    )

    @property
    def exactly_once(self) -> ExactlyOnce | None:
        return "by event" if self.id == "event" and not self.data_stream else None

    @property
    def one_row_an_event(self) -> bool:
        return self.id == "event"

    @property
    def placed_by(self) -> tuple[str, ...]:
        columns = [column or "ts" for _, column in INDEX_PART.findall(self.index)]
        return tuple(dict.fromkeys([*columns, *([self.routing] if self.routing else [])]))

    def misfits(self, columns: Columns, /) -> Iterator[str]:
        for name in self.placed_by:
            if name not in columns:
                yield f"index and routing need the column {name}; {nearest(name, list(columns))}"
            elif name != "ts" and columns[name].name not in _IN_INDEX:
                kind = columns[name].name
                yield f"{name} is a {kind}, which no index name can hold: cast it to text"
        if self.data_stream and "ts" not in columns:
            yield f"a data stream needs the column ts; {nearest('ts', list(columns))}"
        for name in columns:
            if name in RESERVED:
                yield f"{name} is reserved by Elasticsearch: rename the column"

    def needs(self) -> Iterator[Need]:
        for host in self.hosts:
            yield "output", with_port(host)
        for path in (self.ca, self.certificate, self.key):
            if path is not None:
                yield "path", path

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.password is not None and self.username is None:
            yield "password", "expected the username too"
        if self.username is not None and self.password is None:
            yield "username", "expected the password too"
        if self.api_key is not None and self.username is not None:
            yield "api_key", "expected an API key or a user, not both"
        if (self.certificate is None) != (self.key is None):
            given = "key" if self.certificate is None else "certificate"
            yield given, "expected certificate and key together"
        if self.ca is not None and self.fingerprint is not None:
            yield "fingerprint", "expected a CA or a fingerprint, not both"
        plain = [host for host in self.hosts if host.startswith("http:")]
        secured = "fingerprint" if self.fingerprint else "certificate" if self.certificate else "ca"
        if plain and (self.ca or self.fingerprint or self.certificate):
            yield secured, f"expected https in {plain[0]}"
