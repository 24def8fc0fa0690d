"""Adapter to an Elasticsearch or OpenSearch cluster. Uses only the transport of the Elasticsearch
client: the client itself rejects clusters of another version. A request is sent once, to one of the
nodes in rotation, avoiding nodes that failed recently; the caller retries."""

from __future__ import annotations

import base64
import gzip
import re
import ssl
import threading
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote

import elastic_transport
import msgspec
from elastic_transport import ConnectionTimeout, NodeConfig, TlsError, Transport, TransportError
from elastic_transport.client_utils import url_to_node_config
from urllib3 import Timeout
from urllib3.exceptions import ConnectTimeoutError

from flumeng.connectors.api.backoff import CONNECT_SECONDS
from flumeng.connectors.elasticsearch.bulk_response import Cause
from flumeng.connectors.elasticsearch.options import INDEX_PART
from flumeng.connectors.elasticsearch.template import Template
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.scrubbing import Secret, excerpt

ANSWERED = ",".join(
    ["errors"]
    + [f"items.*.{field}" for field in ("status", "error.type", "error.reason")]
    + ["items.*.error.caused_by.reason"]
)
GZIP_LEVEL = 1
QUOTED_CHARACTERS = 300
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Fingerprints did not match")
JSON, LINES = "application/json", "application/x-ndjson"


class OverloadedError(UnavailableError):
    """The cluster is overloaded: send smaller requests, and later."""


class TooLargeError(UnavailableError):
    """The cluster, or a proxy, rejects requests of this size."""


@dataclass(frozen=True)
class Connection:
    hosts: tuple[str, ...]
    timeout_seconds: float
    request_bytes: int
    pipeline: str | None = None
    compressed: bool = False
    api_key: Secret | None = None
    username: str | None = None
    password: Secret | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    fingerprint: str | None = None

    def headers(self) -> dict[str, str]:
        if self.api_key is not None:
            return {"authorization": f"ApiKey {self.api_key}"}
        if self.username is not None:
            pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
            return {"authorization": f"Basic {pair}"}
        return {}

    def node(self, host: str) -> NodeConfig:
        tls: dict[str, Any] = {}
        if host.startswith("https:"):
            tls["ca_certs"] = self.ca or ssl.get_default_verify_paths().cafile
            tls["client_cert"], tls["client_key"] = self.certificate, self.key
            tls["ssl_assert_fingerprint"] = self.fingerprint
        return url_to_node_config(host, use_default_ports_for_scheme=True).replace(
            headers=self.headers(), **tls
        )


class Cluster:
    """Client of one cluster. Thread-safe; all threads share the request ``size``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        try:
            nodes = [connection.node(host) for host in connection.hosts]
            self._transport = Transport(
                nodes,
                serializers={kind.mimetype: kind() for kind in (_Json, _Lines, _Text)},
                default_mimetype=JSON,
                max_retries=0,
                retry_on_status=(),
                max_dead_node_backoff=5,
            )
        except (ValueError, OSError) as error:
            raise UserError(f"elasticsearch: {error}") from error
        self._timeout = Timeout(connect=CONNECT_SECONDS, read=connection.timeout_seconds)
        """Time limits for connecting and reading; the transport hands them on to urllib3."""
        self.size = RequestSize(connection.request_bytes)
        self._installed: set[str] = set()
        self._steady: set[str] = set()
        self._installing = threading.Lock()

    def bulk(self, body: bytes) -> bytes:
        """Send a bulk request; return the response. Raises TooLargeError if not executed, UserError
        for a permanent error, OverloadedError or UnavailableError if perhaps executed."""
        target = f"/_bulk?filter_path={ANSWERED}"
        if self._connection.pipeline is not None:
            target += f"&pipeline={quote(self._connection.pipeline, safe='')}"
        headers = {"content-type": LINES}
        if self._connection.compressed:
            headers["content-encoding"] = "gzip"
            body = gzip.compress(body, GZIP_LEVEL)
        status, answer = self._request("POST", target, headers, body)
        if status == 200:
            return answer
        raise _error(status, answer)

    def check_access(self) -> None:
        """Check that the cluster answers, accepts the user, and has the pipeline. Status 403 is
        accepted: writing may need fewer rights. Raises UnavailableError, UserError."""
        targets = ["/"]
        pipeline = self._connection.pipeline
        if pipeline not in (None, "_none"):
            targets.append(f"/_ingest/pipeline/{quote(str(pipeline), safe='')}")
        for target in targets:
            status, answer = self._request("GET", target, {}, None)
            if status == 404:
                raise UserError(f"elasticsearch: {target} is not there: correct hosts or pipeline")
            if status not in (200, 403):
                raise _error(status, answer)

    def install(self, template: Template) -> None:
        """Create the index template if none has its name. Raises UnavailableError, UserError."""
        with self._installing:
            if template.name in self._installed:
                return
            target = f"/_index_template/{quote(template.name, safe='')}"
            status, answer = self._request("GET", target, {}, None)
            if status == 404:
                status, answer = self._create(target, template)
            if status != 200:
                raise _error(status, answer)
            self._installed.add(template.name)

    def require_steady(self, index: str) -> None:
        """Raise UserError when ``index`` may name an alias that rolls over: a repeated event would
        be in two indexes. Not checked without the right to see aliases. Raises UnavailableError."""
        with self._installing:
            if index in self._steady:
                return
            target = f"/_alias/{quote(INDEX_PART.sub('*', index), safe='*')}"
            status, answer = self._request("GET", target, {}, None)
            if status not in (200, 403, 404):
                raise _error(status, answer)
            try:
                alias = moving(answer, index) if status == 200 else None
            except ValueError as error:
                raise UnavailableError(f"elasticsearch: invalid _alias answer: {error}") from error
            if alias is not None:
                raise UserError(
                    f"elasticsearch: the alias {alias} rolls over: an event that is repeated "
                    "after a rollover would be duplicated; use delivery at-least-once, or an "
                    "index named by the time (%Y.%m.%d)"
                )
            self._steady.add(index)

    def _create(self, target: str, template: Template) -> tuple[int, bytes]:
        status, answer = 400, b""
        for content in template.contents:
            headers = {"content-type": JSON}
            status, answer = self._request("PUT", f"{target}?create=true", headers, content)
            if status != 400:
                break
            there, _ = self._request("GET", target, {}, None)
            if there == 200:  # another executor was first
                return there, b""
        return status, answer

    def _request(
        self, method: str, target: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        try:
            meta, answer = self._transport.perform_request(
                method,
                target,
                headers={"accept": JSON, **headers},
                body=body,
                request_timeout=cast("float", self._timeout),
            )
        except ConnectionTimeout as error:
            if any(isinstance(cause, ConnectTimeoutError) for cause in error.errors):
                raise UnavailableError(
                    f"elasticsearch: no connection within {CONNECT_SECONDS:.0f} s"
                ) from error
            seconds = self._connection.timeout_seconds
            raise OverloadedError(f"elasticsearch: no response within {seconds:.0f} s") from error
        except TransportError as error:
            if isinstance(error, TlsError) and any(text in error.message for text in UNTRUSTED):
                raise UserError(
                    "elasticsearch: the cluster's certificate is not trusted, see the options ca "
                    f"and fingerprint: {_first_line(error.message)}"
                ) from error
            raise UnavailableError(f"elasticsearch: {_first_line(error.message)}") from error
        except ValueError as error:
            raise UnavailableError(f"elasticsearch: {_first_line(str(error))}") from error
        return meta.status, answer or b""


@lru_cache(maxsize=16)
def connect(connection: Connection) -> Cluster:
    """Return the client for the cluster, shared by all splits of this process."""
    return Cluster(connection)


class _Untouched(elastic_transport.Serializer):
    """Serializer that passes bodies unchanged: the caller encodes and decodes them."""

    def dumps(self, data: Any) -> bytes:
        assert isinstance(data, bytes)
        return data

    def loads(self, data: bytes) -> bytes:
        return data


class _Json(_Untouched):
    mimetype = JSON


class _Lines(_Untouched):
    """Sends bulk lines as they are: the transport would append a newline to compressed data."""

    mimetype = LINES


class _Text(_Untouched):
    """Text responses, which proxies send."""

    mimetype = "text/*"


class _ErrorResponse(msgspec.Struct):
    error: Cause | str = ""


def _error(status: int, answer: bytes) -> UnavailableError | UserError:
    message = f"elasticsearch: status {status}: {_error_text(answer)}"
    if status == 413:
        return TooLargeError(message)
    if status == 429:
        return OverloadedError(message)
    if status >= 500 or status in (403, 404, 408):
        return UnavailableError(message)
    return UserError(message)


def _error_text(answer: bytes) -> str:
    try:
        error = msgspec.json.decode(answer, type=_ErrorResponse).error
    except msgspec.DecodeError:
        return excerpt(re.sub(r"\s+", " ", answer.decode("utf-8", "replace")), QUOTED_CHARACTERS)
    text = error if isinstance(error, str) else f"{error.type}: {error.reason}"
    return excerpt(text, QUOTED_CHARACTERS)


def _first_line(text: str) -> str:
    return excerpt(text.partition("\n")[0], QUOTED_CHARACTERS)


class _Alias(msgspec.Struct):
    is_write_index: bool | None = None


class _Aliases(msgspec.Struct):
    aliases: dict[str, _Alias] = {}


def moving(content: bytes, index: str) -> str | None:
    """Return the first alias that rolls over and matches ``index``; None without such an alias.
    ``content`` is the response of ``_alias``; ValueError is raised for any other content."""
    write_flags: defaultdict[str, list[bool | None]] = defaultdict(list)
    for index_aliases in msgspec.json.decode(content, type=dict[str, _Aliases]).values():
        for name, alias in index_aliases.aliases.items():
            write_flags[name].append(alias.is_write_index)
    pattern = _alias_pattern(index)
    for name, writes in sorted(write_flags.items()):
        if pattern.fullmatch(name) and (len(writes) > 1 or writes[0] is not None):
            return name
    return None


def _alias_pattern(index: str) -> re.Pattern[str]:
    parts = INDEX_PART.split(index)
    pattern = ""
    for fixed, time, column in zip(
        parts[::3], [*parts[1::3], None], [*parts[2::3], None], strict=True
    ):
        pattern += re.escape(fixed) + ("[0-9]+" if time else "[a-z0-9._-]+" if column else "")
    return re.compile(pattern)


LEAST_BYTES = 64 * 1024
FIRST_BYTES = 1024 * 1024


class RequestSize:
    """Size of bulk requests. It doubles until a request is rejected, which halves it; from then on
    it grows by an eighth, like TCP's window."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._growth = 2.0
        self.bytes = min(FIRST_BYTES, most_bytes)

    def grow(self) -> None:
        self.bytes = min(self._most, int(self.bytes * self._growth))

    def shrink(self) -> None:
        self._growth = 1.125
        self.bytes = max(LEAST_BYTES, self.bytes // 2)
