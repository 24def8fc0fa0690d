"""ZooKeeper is lost and an export is imported in its place while collectors run and senders send.

Protects that tasks claim again without a restart, and that a flow which the export lacks is applied
again and delivered, though its journals are there.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.live.replica_hosts import can_make_hosts, running
from tests.live.test_replicas_chaos import lake_of
from tests.live.test_replicas_import import export
from tests.live.test_replicas_takeover import Web
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="hosts need root and ip")

LATE = """
flow: late
sources: [{{tail: {{paths: ["{folder}/late.log"]}}}}]
place: {{ingest: {{labels: {{role: web}}}}}}
batch: {{seconds: 0.3}}
sinks: [{{files: {{path: "{folder}/late"}}}}]
"""


@pytest.mark.long
def test_tasks_and_flows_continue_after_an_import(tmp_path: Path) -> None:
    with running(tmp_path, 2) as hosts:
        web = Web(hosts)
        web.begin(least=1)
        hosts.collect()
        web.send(1000)
        web.wait_for_delivery()
        wait_for(hosts.acked, "what is delivered is not acked")
        exported = export(web)
        late, lines = hosts.folder / "late.yaml", hosts.folder / "late.log"
        late.write_text(LATE.format(folder=hosts.folder))
        lines.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(100)))
        assert "revision 1" in hosts.command("flow", "apply", str(late))
        wait_for(lambda: len(lake_of(hosts.folder / "late")) == 100, "lines are not delivered")

        hosts.lose_zookeeper()
        for _ in range(10):
            web.try_to_send(100)
            time.sleep(0.5)
        assert "imported" in hosts.command("schema", "import", str(exported))
        web.try_to_send(500)
        web.wait_for_delivery()

        with lines.open("a") as file:
            file.writelines(json.dumps({"n": n}) + "\n" for n in range(100, 200))
        wait_for(lambda: "(late)" in hosts.command("status"), "nobody says what is kept")
        applied = hosts.command("flow", "apply", str(late))
        assert "revision 1" in applied, applied
        wait_for(lambda: len(lake_of(hosts.folder / "late")) == 200, "lines are not delivered")
        web.try_to_send(500)
        web.wait_for_delivery()
