"""Targets of a flow's sinks are tried before it is applied, and nothing is written there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flumeng.agent.dryrun.targets import tried
from flumeng.config import parse_flow
from tests.testkit.command_line import Shell
from tests.testkit.store import FakeTree


class Receiver:
    """A server that answers each request with the status of its path, and records them."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int]] = []
        """Method, path, and bytes of the body."""
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                requests.append((self.command, self.path, size))
                status = self.path.rpartition("_")[2]
                self.send_response(int(status) if status.isdecimal() else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_HEAD = do_POST = answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


@pytest.fixture
def closed() -> int:
    """A port without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def flow(*sinks: str) -> str:
    return "flow: web\nsources: [tail: {paths: [/var/log/web.log]}]\nsinks:\n" + "".join(
        f"- {sink}\n" for sink in sinks
    )


def states(*sinks: str) -> list[tuple[str, str]]:
    return [(one.name, one.state) for one in tried(parse_flow(flow(*sinks)))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "state"),
    [("in", "reached"), ("x_405", "reached"), ("x_404", "reached"), ("x_501", "reached"),
     ("x_401", "failed"), ("x_403", "failed"), ("x_503", "failed")],
)  # fmt: skip
def test_url_is_tried_with_a_head_request(receiver: Receiver, path: str, state: str) -> None:
    found = states(f'http: {{url: "http://127.0.0.1:{receiver.port}/{path}"}}')
    assert found == [("http", state)]
    assert receiver.requests == [("HEAD", f"/{path}", 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sink",
    [
        'http: {{url: "http://127.0.0.1:{port}/in"}}',
        'elasticsearch: {{hosts: ["http://127.0.0.1:{port}"], index: web}}',
        'sql: {{url: "postgresql://127.0.0.1:{port}/logs", table: web, username: me, '
        "sslmode: disable}}",
        'tcp: {{targets: ["127.0.0.1:{port}"]}}',
        'syslog: {{targets: ["127.0.0.1:{port}"]}}',
        'kafka: {{brokers: ["127.0.0.1:{port}"], topic: web, timeout_seconds: 5}}',
        'iceberg: {{catalog: {{type: rest, uri: "http://127.0.0.1:{port}"}}, table: web.events}}',
    ],
)
def test_closed_port_is_reported(sink: str, closed: int) -> None:
    (found,) = tried(parse_flow(flow(sink.format(port=closed))))
    assert found.state == "failed"
    assert "127.0.0.1" in found.why or "refused" in found.why.lower()


def test_each_target_of_a_sink_and_each_member_of_a_group_is_tried(closed: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        good, bad = f"127.0.0.1:{server.getsockname()[1]}", f"127.0.0.1:{closed}"
        group = f'first_of: {{sinks: [tcp: {{targets: ["{good}"]}}, tcp: {{targets: ["{bad}"]}}]}}'
        found = states(f'tcp: {{targets: ["{good}", "{bad}"]}}', group, "noop")
    assert found == [
        ("tcp", "failed"),
        ("tcp", "reached"),
        ("tcp", "failed"),
        ("noop", "not tried"),
    ]


@pytest.mark.slow
def test_a_pipeline_that_elasticsearch_lacks_is_reported(receiver: Receiver) -> None:
    host = f'hosts: ["http://127.0.0.1:{receiver.port}"], index: web'
    assert states(f"elasticsearch: {{{host}, pipeline: there}}") == [("elasticsearch", "reached")]
    (found,) = tried(parse_flow(flow(f"elasticsearch: {{{host}, pipeline: x_404}}")))
    assert found.state == "failed"
    assert "/_ingest/pipeline/x_404" in found.why
    assert {method for method, _, _ in receiver.requests} == {"GET"}


@pytest.mark.slow
def test_a_table_that_a_sink_would_make_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    catalog = f'{{type: sql, uri: "sqlite:///{tmp_path}/c.db", warehouse: "{tmp_path}/lake"}}'
    found = states(
        f"delta: {{path: {tmp_path}/lake/delta}}",
        f"iceberg: {{catalog: {catalog}, table: web.events}}",
    )
    assert found == [("delta", "reached"), ("iceberg", "reached")]
    assert list((tmp_path / "lake").iterdir()) == []


@pytest.mark.slow
def test_validate_reports_each_sink_and_ends_with_4(
    tmp_path: Path, receiver: Receiver, closed: int
) -> None:
    shell = Shell(FakeTree())
    file = tmp_path / "web.yaml"
    good, bad = (f'http: {{url: "http://127.0.0.1:{port}/in"}}' for port in (receiver.port, closed))
    file.write_text(flow(good, bad))
    result = shell.run("flow", "validate", file, "--check-targets", zk=None)
    assert result.exit_code == 4
    assert f"{file}: sink http: reached" in result.stdout
    assert f"{file}: sink http: failed: POST http://127.0.0.1:{closed}/in" in result.stdout
    assert "1 of 2 targets" in result.stderr
    file.write_text(flow(good))
    rows = shell.json("flow", "validate", file, "--check-targets")
    assert [(row["flow"], row["name"], row["state"]) for row in rows] == [
        ("web", "http", "reached")
    ]
