"""How long events take to be acked, and sinks to write them, as a collector's metrics have it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.live.one_host import Standalone
from tests.testkit.waiting import wait_for

SLOW_SECONDS = 2.0
OBJECT_AGE_SECONDS = 500.0
LATENCY, WRITE = "flumeng_flow_latency_seconds", "flumeng_sink_write_seconds"


class Receiver(BaseHTTPRequestHandler):
    """Accepts all requests; answers those to /slow late."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/slow":
            time.sleep(SLOW_SECONDS)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    standalone = Standalone(tmp_path)
    yield standalone
    if standalone.process is not None and standalone.process.poll() is None:
        standalone.process.terminate()
        standalone.process.wait(timeout=120)


def mean(page: dict[str, dict[tuple[str, ...], float]], metric: str, *labels: str) -> float:
    key = (*labels, "collect")
    return page[f"{metric}_sum"][key] / page[f"{metric}_count"][key]


@pytest.mark.long
def test_isolated_part_and_its_sink_have_latencies_of_their_own(
    standalone: Standalone, url: str, tmp_path: Path
) -> None:
    standalone.flow.write_text(f"""
flow: web
sources: [{{syslog: {{listen: "127.0.0.1:{standalone.port}"}}}}]
batch: {{seconds: 0.2}}
sinks:
  - noop: {{}}
  - http: {{url: "{url}/fast"}}
  - http: {{url: "{url}/slow"}}
    isolated: true
""")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    listed = inbox / "one.log"
    listed.write_bytes(b"a line\n" * 10)
    modified = time.time() - OBJECT_AGE_SECONDS
    os.utime(listed, (modified, modified))
    objects = tmp_path / "objects.yaml"
    source = f'objects: {{paths: ["{inbox}/*.log"]}}'
    objects.write_text(f"flow: objects\nsources: [{source}]\nsinks: [noop]\n")
    standalone.start("--flow", str(standalone.flow), "--flow", str(objects))
    standalone.send(10)
    parts = {("web", "collect"), ("web~http", "collect"), ("objects", "collect")}
    wait_for(
        lambda: set(standalone.scrape().get(f"{LATENCY}_count", {})) >= parts,
        "no latencies",
        seconds=240,
    )
    for _ in range(3):  # the first batches wait for Spark too
        standalone.send(10)
        time.sleep(1)
    wanted = {("web", "collect"): 40, ("web~http", "collect"): 40, ("objects", "collect"): 10}
    wait_for(
        lambda: standalone.scrape()[f"{LATENCY}_count"] == wanted, f"not {wanted}: each event once"
    )
    page = standalone.scrape()
    slow = mean(page, WRITE, "web~http", "sinks[0].http")
    assert SLOW_SECONDS <= slow < SLOW_SECONDS + 1
    assert mean(page, WRITE, "web", "sinks[1].http") < 1
    assert mean(page, WRITE, "web", "sinks[0].noop") < 1
    buckets = page[f"{WRITE}_bucket"]
    by_bound = {
        bound: buckets["web~http", bound, "sinks[0].http", "collect"]
        for bound in ("1.0", "5.0", "+Inf")
    }
    assert by_bound["1.0"] == 0
    assert by_bound["5.0"] == by_bound["+Inf"]
    assert mean(page, LATENCY, "web~http") >= SLOW_SECONDS
    assert mean(page, LATENCY, "objects") >= OBJECT_AGE_SECONDS
