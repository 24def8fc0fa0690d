"""The page on the web console, followed on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.agent.standalone.embedded import free_port
from tests.live.how_to_hosts import Hosts
from tests.testkit.waiting import wait_for

FLOW = 'flow: web\nsources: [{syslog: {listen: "127.0.0.1:0"}}]\nsinks: [noop]\n'


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()


def test_the_web_console(hosts: Hosts, tmp_path: Path) -> None:
    hosts.apply(FLOW, tmp_path)
    listen = f"127.0.0.1:{free_port()}"
    replaced = {"127.0.0.1:8080": listen, "127.0.0.1:2181/flumeng": hosts.zk, '"4"': '"1"'}
    page = hosts.page("console", tmp_path)
    page.values |= replaced
    with page:
        page.run("export")
        log = page.begin("flumeng console --allow-changes")
        wait_for(lambda: "ready" in log.read_text(), log.read_text)
        assert json.loads(page.run("curl -s http"))[0]["flow"] == "web"
        assert json.loads(page.run("curl -s -X POST"))
        page.excuse("flumeng console --listen 0.0.0.0", "test_console_who.py runs TLS and OIDC")
    assert "suspended" in hosts.command("flow", "list")
    assert "target is full" in hosts.command("cluster", "audit")
