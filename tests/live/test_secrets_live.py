"""A server that quotes the password in its answers: the password is nowhere but in its file."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.live.chaos import Cluster
from tests.testkit.daemons import start_logged
from tests.testkit.files import contents_below
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long

PASSWORD = "correct-horse/battery+staple 7"
FLUMENG = Path(sys.executable).with_name("flumeng")
FLOW = """
flow: {name}
sources: [{{generate: {{events_per_second: 100}}}}]
batch: {{seconds: 0.2}}
filters: [{filters}]
sinks: [{{http: {{url: "{url}", headers: {{Authorization: "Bearer ${{secret:{secret}}}"}}}}}}]
"""


class Quoting(BaseHTTPRequestHandler):
    """Answers with the received secret in every form, and so long that it is cut."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        sent = self.headers["Authorization"]
        forms = [sent, base64.b64encode(sent.encode()).decode(), json.dumps({"sent": sent})]
        answer = f"{' '.join(forms)} {'x' * 20} {sent}".encode()
        self.send_response(401, f"not with {sent}")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Quoting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/events"
    server.shutdown()


class WithPolicy(Cluster):
    def start(self, name: str) -> None:
        if name != "node":
            super().start(name)
            return
        policy = ["--policy", str(self.folder / "node.yaml")]
        self.tops[name] = start_logged(
            self.folder / "node.log", str(FLUMENG), "node", "run", *self.node_arguments(), *policy
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    (tmp_path / "node.yaml").write_text(
        f"secrets: {{hooks: {{command: [/bin/cat, {secret}]}}, lost: {{file: {tmp_path}/lost}}}}"
    )
    cluster = WithPolicy(tmp_path)
    cluster.start_all()
    yield cluster
    cluster.stop()


def flumeng(cluster: Cluster, *arguments: str) -> str:
    done = subprocess.run(
        [FLUMENG, *arguments, "--zk", cluster.hosts], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def errors(cluster: Cluster) -> dict[str, str]:
    tasks = json.loads(flumeng(cluster, "task", "list", "--json"))
    return {row["flow"]: row["why"] for row in tasks if row["kind"] == "collect" and row["why"]}


def test_password_quoted_by_a_server_appears_in_no_output_and_no_file(
    cluster: Cluster, url: str
) -> None:
    """Not of a flow in Arrow, nor of one in Spark SQL, whose errors Spark writes into its log."""
    for name, filters, secret in (
        ("arrow", "", "hooks"),
        ("sql", 'where: "length(host) >= 0"', "hooks"),
        ("lost", "", "lost"),
    ):
        text = FLOW.format(name=name, filters=filters, url=url, secret=secret)
        file = cluster.folder / f"{name}.yaml"
        file.write_text(text)
        assert "revision 1" in flumeng(cluster, "flow", "apply", str(file))
    told: dict[str, str] = {}

    def all_told() -> bool:
        told.update(errors(cluster))
        return all("401" in told.get(name, "") for name in ("arrow", "sql")) and "lost" in told

    wait_for(all_told, lambda: told, pause_seconds=2)
    assert "HTTP 401 not with ***" in told["arrow"]
    assert "HTTP 401 not with ***" in told["sql"]
    assert "there is no secret lost" in told["lost"]
    shown = [flumeng(cluster, *command.split()) for command in ("status --json", "task list")]
    shown.append(flumeng(cluster, "schema", "export"))
    assert not any(part in text for text in shown for part in parts())
    for file, content in contents_below(cluster.folder):
        if file.name != "secret":
            assert not [part for part in parts() if part.encode() in content], file


def parts() -> list[str]:
    """The password, its first half, and its base64 form."""
    sent = base64.b64encode(f"Bearer {PASSWORD}".encode()).decode()
    return [PASSWORD, PASSWORD[:12], sent[12:36]]
