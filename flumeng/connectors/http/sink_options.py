"""The options of the sink ``http``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from flumeng.config.component import ExactlyOnce, SinkOptions
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.patterns import SECRET
from flumeng.platform.options.quantities import check_absolute
from flumeng.platform.options.texts import PORTS, check_url

IDEMPOTENCY_KEY = "Idempotency-Key"
_OURS = ("content-encoding", "content-length", "content-type", "host", "transfer-encoding")
_SECRET = ("authorization", "cookie", "proxy-authorization")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


def check_header(name: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise ValueError("expected the name of a header, like X-Source")
    if name.lower() in (*_OURS, IDEMPOTENCY_KEY.lower()):
        raise ValueError("flumeng sets this header itself")


@dataclass(frozen=True)
class Http(SinkOptions):
    """Sends events as JSON to a URL, many in a request.

    Each request has a header `Idempotency-Key`, which is the same when the request is repeated.
    """

    implementation: ClassVar[str] = "flumeng.connectors.http.sink:HttpSink"

    url: str = option(
        doc="The receiver's URL.", check=check_url, example='"https://hooks.example/events"'
    )
    method: Literal["POST", "PUT"] = option(doc="The method of requests.", default="POST")
    format: Literal["ndjson", "json"] = option(
        doc="`ndjson`: each event is a line; `json`: a request is one array.", default="ndjson"
    )
    compression: Literal["none", "gzip", "zstd"] = option(
        doc="The compression of requests, as in `Content-Encoding`.", default="none"
    )
    headers: Mapping[str, str] = option(
        doc="Headers of each request; a value may contain references to secrets.",
        check=check_header,
        example='{Authorization: "Bearer ${secret:hooks}"}',
        factory=dict,
    )
    request_bytes: int = option(
        doc="Size limit of a request, before compression; a single event may exceed it.",
        default=2**20,
        between=(2**10, 2**26),
    )
    idempotent: bool = option(
        doc="The receiver accepts a request whose `Idempotency-Key` it has processed before, "
        "without processing it again. Exactly-once delivery needs that.",
        default=False,
    )
    timeout_seconds: float = option(
        doc="Time limit for the receiver's response.", default=30.0, between=(0.1, 600)
    )
    ca: str | None = option(
        doc="A file of CA certificates to trust instead of the host's.",
        check=check_absolute,
        example="/etc/flumeng/tls/hooks-ca.pem",
        default=None,
    )

    cut_by_content: ClassVar[bool] = True

    @property
    def exactly_once(self) -> ExactlyOnce | None:
        return "by batch" if self.idempotent else None

    def needs(self) -> Iterator[Need]:
        parts = urlsplit(self.url)
        port = parts.port or PORTS[parts.scheme]
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        yield "output", f"{parts.scheme}://{host}:{port}{parts.path}"
        if self.ca is not None:
            yield "path", self.ca

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, value in self.headers.items():
            if name.lower() in _SECRET and not SECRET.search(value):
                yield f"headers.{name}", "expected a reference to a secret, like ${secret:NAME}"
            if not value.isascii() or not value.isprintable():
                yield f"headers.{name}", "expected printable ASCII characters"
