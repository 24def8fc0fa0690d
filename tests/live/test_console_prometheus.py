"""The history of a flow, from a real Prometheus."""

from __future__ import annotations

import http.server
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from starlette.testclient import TestClient

from flumeng.console.app import make_app
from flumeng.console.console import Console
from flumeng.console.prometheus import POINTS, Prometheus
from flumeng.console.who.viewers import Viewer
from flumeng.platform.errors import UnavailableError, UserError
from tests.testkit.cluster import add_flow, new_cluster
from tests.testkit.waiting import wait_for

METRICS = """
flumeng_flow_lag_events{flow="web",instance="a"} 5
flumeng_flow_lag_events{flow="web",instance="b"} 2
flumeng_flow_lag_events{flow="other"} 123
"""


class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(METRICS.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scrapes METRICS each second."""
    program = shutil.which("prometheus")
    assert program is not None, "Prometheus is missing: apt-get install prometheus"
    folder = tmp_path_factory.mktemp("prometheus")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as scraped:
        threading.Thread(target=scraped.serve_forever, daemon=True).start()
        config = folder / "prometheus.yaml"
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            "scrape_configs: [{job_name: flumeng, static_configs: "
            f'[{{targets: ["127.0.0.1:{scraped.server_port}"]}}]}}]\n'
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [
                    program,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()
            scraped.shutdown()


def _client(prometheus: Prometheus | None) -> TestClient:
    store = new_cluster()
    add_flow(store, "web")
    console = Console(store, prometheus=prometheus)
    return TestClient(make_app(console, lambda _request: Viewer("ann")))


def test_a_flow_has_its_own_series_and_no_other(url: str) -> None:
    client = _client(Prometheus(url))
    page = wait_for(
        partial(_with_value, client),
        "no value is recorded",
        seconds=60,
        ignoring=(UnavailableError,),
    )
    assert "7 events" in page
    assert "123 events" not in page
    assert page.count('class="chart"') == 1
    assert "Nothing is recorded." in page


def _with_value(client: TestClient) -> str:
    page = client.get("/flows/web/history?span=1h").text
    client.app.state.console.shared._answers.clear()  # type: ignore[attr-defined]
    return page if "7 events" in page else ""


def test_values_are_at_their_times(url: str) -> None:
    prometheus = Prometheus(url)
    (series,) = wait_for(
        lambda: prometheus.over('flumeng_flow_lag_events{flow="other"}', time.time(), 3600.0),
        "nothing is scraped",
        ignoring=(UnavailableError,),
    )
    assert len(series.values) == POINTS
    assert series.values[-1] == 123.0
    assert series.values[0] is None
    assert series.labels["flow"] == "other"


def test_a_query_that_is_refused_or_a_server_that_is_away_is_told(url: str) -> None:
    with pytest.raises(UnavailableError, match="answers 400"):
        Prometheus(url).over("sum(", 1e9, 3600.0)
    with pytest.raises(UnavailableError, match="does not answer"):
        Prometheus("http://127.0.0.1:1").over("up", 1e9, 3600.0)
    with pytest.raises(UserError, match="expected http"):
        Prometheus("prometheus:9090")


def test_a_page_tells_what_is_away_and_what_is_not_there() -> None:
    away = _client(Prometheus("http://127.0.0.1:1"))
    assert "does not answer" in away.get("/flows/web/history").text
    assert away.get("/flows/web/history?span=2y").status_code == 422
    without = _client(None)
    assert without.get("/flows/web/history").status_code == 404
    assert "/flows/web/history" not in without.get("/flows/web").text
