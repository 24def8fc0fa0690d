"""The one adapter to a cluster: through the transport of the client of Elasticsearch.

The client itself asks first whether the server is Elasticsearch of its own version, so it is left
out. Each request is sent once, to the next node in turn that has answered lately: who asks decides
whether to repeat it.
"""

from __future__ import annotations

import base64
import gzip
import re
import ssl
import threading
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
from flumeng.connectors.elasticsearch import aliases
from flumeng.connectors.elasticsearch.answers import Cause
from flumeng.connectors.elasticsearch.request_size import RequestSize
from flumeng.connectors.elasticsearch.template import Template
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.scrubbing import Secret, excerpt

ANSWERED = ",".join(
    ["errors"]
    + [f"items.*.{field}" for field in ("status", "error.type", "error.reason")]
    + ["items.*.error.caused_by.reason"]
)
GZIP_LEVEL = 1
SAID_CHARACTERS = 300
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Fingerprints did not match")
JSON, LINES = "application/json", "application/x-ndjson"


class OverloadedError(UnavailableError):
    """The cluster takes no more now: smaller requests, later."""


class TooLargeError(UnavailableError):
    """The cluster, or something before it, takes no request of that size."""


@dataclass(frozen=True)
class Connection:
    """How a cluster is reached: the sink's options, with what the secrets are."""

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
    """Used by several threads at a time. ``size`` is what all of them have learned."""

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
        """The transport hands it to urllib3 unread."""
        self.size = RequestSize(connection.request_bytes)
        self._installed: set[str] = set()
        self._steady: set[str] = set()
        self._installing = threading.Lock()

    def bulk(self, body: bytes) -> bytes:
        """The answer to a request that the cluster has carried out, event by event.

        Raises UnavailableError: whether the cluster has is unknown; OverloadedError and
        TooLargeError, that it has not; UserError, that it never will.
        """
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
        raise _refusal(status, answer)

    def require_known(self) -> None:
        """The cluster answers, knows the user, and has the pipeline. A right that writing does not
        need may be missing (403). Raises UnavailableError, UserError."""
        targets = ["/"]
        pipeline = self._connection.pipeline
        if pipeline not in (None, "_none"):
            targets.append(f"/_ingest/pipeline/{quote(str(pipeline), safe='')}")
        for target in targets:
            status, answer = self._request("GET", target, {}, None)
            if status == 404:
                raise UserError(f"elasticsearch: there is no {target}: correct `pipeline`")
            if status not in (200, 403):
                raise _refusal(status, answer)

    def install(self, template: Template) -> None:
        """Install it unless the cluster has one of that name. Raises UnavailableError,
        UserError."""
        with self._installing:
            if template.name in self._installed:
                return
            target = f"/_index_template/{quote(template.name, safe='')}"
            status, answer = self._request("GET", target, {}, None)
            if status == 404:
                status, answer = self._create(target, template)
            if status != 200:
                raise _refusal(status, answer)
            self._installed.add(template.name)

    def require_steady(self, index: str) -> None:
        """Raises UserError when ``index``, the option, names an alias whose write index moves on: a
        repeated event would be in two indexes. Not checked where the user lacks the right to see
        aliases. Raises UnavailableError."""
        with self._installing:
            if index in self._steady:
                return
            target = f"/_alias/{quote(aliases.target_of(index), safe='*')}"
            status, answer = self._request("GET", target, {}, None)
            if status not in (200, 403, 404):
                raise _refusal(status, answer)
            try:
                alias = aliases.moving(answer, index) if status == 200 else None
            except ValueError as error:
                raise UnavailableError(f"elasticsearch: no answer of _alias: {error}") from error
            if alias is not None:
                raise UserError(
                    f"elasticsearch: {alias} is an alias whose write index moves on: an event that "
                    "is repeated after a rollover would be there twice; use delivery "
                    "at-least-once, or an index that is named by the time (%Y.%m.%d)"
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
            raise OverloadedError(f"elasticsearch: no answer within {seconds:.0f} s") from error
        except TransportError as error:
            if isinstance(error, TlsError) and any(said in error.message for said in UNTRUSTED):
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
    """One for all splits that this process takes."""
    return Cluster(connection)


class _Untouched(elastic_transport.Serializer):
    """Requests are made, and answers read, by others."""

    def dumps(self, data: Any) -> bytes:
        assert isinstance(data, bytes)
        return data

    def loads(self, data: bytes) -> bytes:
        return data


class _Json(_Untouched):
    mimetype = JSON


class _Lines(_Untouched):
    """The transport's own would put a line end behind what was compressed."""

    mimetype = LINES


class _Text(_Untouched):
    """What servers before the cluster answer."""

    mimetype = "text/*"


class _Refusal(msgspec.Struct):
    error: Cause | str = ""


def _refusal(status: int, answer: bytes) -> UnavailableError | UserError:
    message = f"elasticsearch: status {status}: {_said(answer)}"
    if status == 413:
        return TooLargeError(message)
    if status == 429:
        return OverloadedError(message)
    if status >= 500 or status in (403, 404, 408):
        return UnavailableError(message)
    return UserError(message)


def _said(answer: bytes) -> str:
    try:
        error = msgspec.json.decode(answer, type=_Refusal).error
    except msgspec.DecodeError:
        return excerpt(re.sub(r"\s+", " ", answer.decode("utf-8", "replace")), SAID_CHARACTERS)
    said = error if isinstance(error, str) else f"{error.type}: {error.reason}"
    return excerpt(said, SAID_CHARACTERS)


def _first_line(text: str) -> str:
    return excerpt(text.partition("\n")[0], SAID_CHARACTERS)
