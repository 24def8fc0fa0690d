"""With which command a node starts its children: each has a port of its own."""

from __future__ import annotations

from pathlib import Path

from flumeng.agent.node.settings import Settings, command_of

DATA = Path("/data")


def test_each_child_is_started_with_its_own_port_and_options() -> None:
    settings = Settings("n1", DATA, "zk:1/c", port=7000, workers=2, policy=Path("/p.yaml"))
    started = {
        child: " ".join(command_of(child, settings, DATA, {"cores": "3"}))
        for child in ("ingest.0", "ingest.1", "discover", "collect")
    }
    common = "--data /data --node n1 --host 127.0.0.1 --policy /p.yaml"
    client = "--zk zk:1/c --session-seconds 10.0"
    assert started == {
        "ingest.0": f"flumeng.agent.ingest {common} --worker 0 --workers 2 --port 7000",
        "ingest.1": f"flumeng.agent.ingest {common} --worker 1 --workers 2 --port 7001",
        "discover": f"flumeng.agent.discovery {common} {client} --port 7002",
        "collect": f"flumeng.agent.collector {common} {client} --port 7003 --warm "
        '--spark {"cores": "3"}',
    }


def test_collector_of_a_node_without_a_warm_one_lets_its_python_workers_end() -> None:
    settings = Settings("n1", DATA, "zk:1/c", warm_collector=False)
    assert "--warm" not in command_of("collect", settings, DATA, {})


def test_child_without_a_port_takes_a_free_one() -> None:
    settings = Settings("n1", DATA, "zk:1/c")
    assert "--port" not in command_of("collect", settings, DATA, {})
    assert "--spark" not in command_of("collect", settings, DATA, {})
