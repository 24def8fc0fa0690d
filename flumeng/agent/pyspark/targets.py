"""The sources ``http`` of a flow as targets of a writer, and requests to them."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from flumeng.agent.pyspark.cursor import connect
from flumeng.agent.pyspark.options import WriteOptions
from flumeng.config import parse_flow
from flumeng.connectors.api.backoff import Backoff
from flumeng.connectors.flows.flow_journals import FlowJournals
from flumeng.connectors.http.arrow_body import CONTENT_TYPE
from flumeng.connectors.http.options import Http
from flumeng.connectors.http.receiver import RETRY_SECONDS, Endpoint, TooLargeError, send
from flumeng.control.commands.cursors import require_readable
from flumeng.control.commands.lookup import require_revision
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.scrubbing import Secret

ANSWER_SECONDS = 60.0
"""Time limit of an answer: a source waits half a minute until events are durable."""
PAUSE_SECONDS = 0.5
"""Pause before the next target."""
ANY_HOST = ("", "0.0.0.0", "::")


@dataclass(frozen=True)
class Targets:
    """Where to send, with which token; pickled to executors. ``ca``: trusted certificates (PEM)."""

    urls: tuple[str, ...]
    token: str = field(repr=False)
    ca: str
    retry_seconds: float

    def endpoints(self) -> list[Endpoint]:
        headers = [("Content-Type", CONTENT_TYPE)]
        if self.token:
            headers.append(("Authorization", f"Bearer {self.token}"))
        ca = self.ca or None
        return [
            Endpoint(url, "POST", tuple(headers), None, ANSWER_SECONDS, ca) for url in self.urls
        ]


def find(options: WriteOptions) -> Targets:
    """Return the targets of a writer. Raises UserError, UnavailableError when no node of the flow
    is live, and errors of ZooKeeper."""
    urls = options.urls
    if not urls:
        with closing(connect(options.zookeeper)) as store:
            urls = _urls(store, options.flow)
    token, ca = _content("tokenFile", options.token_file), _content("ca", options.ca)
    return Targets(urls, Secret(token.strip()), ca, options.retry_seconds)


def _urls(store: Store, flow: str) -> tuple[str, ...]:
    """Return the URLs of the flow's first source ``http`` on all live nodes that have journals."""
    record = require_readable(store, flow)
    spec = parse_flow(require_revision(store, flow, record.value.revision).effective)
    found = [source.options for source in spec.pinned if isinstance(source.options, Http)]
    if not found:
        raise UserError(
            f'flow {flow} has no source http: add `- http: {{listen: "0.0.0.0:8080"}}` to its '
            'sources, or name another target with option("url", ...)'
        )
    scheme = "http" if found[0].tls is None else "https"
    listened, _, port = found[0].listen.rpartition(":")
    if port == "0":
        raise UserError(f"flow {flow} listens on any free port: name it with option url")
    with closing(FlowJournals(flow, store)) as journals:
        addresses = journals.addresses(journals.registered()).values()
    hosts = {address.rpartition(":")[0] for address in addresses}
    if not hosts:
        raise UnavailableError(f"no node of flow {flow} is live, see `flumeng status {flow}`")
    if listened.strip("[]") not in ANY_HOST:
        hosts = {listened}
    return tuple(f"{scheme}://{host}:{port}/" for host in sorted(hosts))


def _content(option: str, file: str) -> str:
    try:
        return Path(file).read_text() if file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"option {option}: cannot read {file}: {error}") from error


class Requests:
    """Requests of one task, which begins with another target than its neighbours."""

    def __init__(self, targets: Targets, partition: int) -> None:
        self._endpoints = targets.endpoints()
        self._retry_seconds = targets.retry_seconds
        self._at = partition % len(self._endpoints)

    def send(self, events: pa.RecordBatch) -> None:
        """Send events until a source has accepted all; some may be accepted twice. Raises
        TooLargeError for a single event, RefusedRequestError, UserError, and UnavailableError when
        none has accepted them for ``retry_seconds``."""
        try:
            self._send(events.serialize().to_pybytes())
        except TooLargeError:
            if len(events) == 1:
                raise
            half = len(events) // 2
            self.send(events.slice(0, half))
            self.send(events.slice(half))

    def _send(self, body: bytes) -> None:
        until = time.monotonic() + self._retry_seconds
        while True:
            endpoint = self._endpoints[self._at]
            pauses = Backoff(min(RETRY_SECONDS, self._retry_seconds))
            try:
                send(endpoint, body, "", pauses)
            except UnavailableError as error:
                if time.monotonic() > until:
                    raise UnavailableError(
                        f"no source accepted events for {self._retry_seconds:g} s: {error}"
                    ) from error
                self._at = (self._at + 1) % len(self._endpoints)
                time.sleep(PAUSE_SECONDS)
            else:
                return
