"""``python -m flumeng.agent.gateway``: a node with the role ``gateway`` starts it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path

from flumeng.agent.gateway.filter_processes import FilterProcesses
from flumeng.agent.gateway.flow_filters import FlowFilters
from flumeng.agent.gateway.flow_watch import IDLE_SECONDS, FlowWatch
from flumeng.agent.gateway.local_journals import LocalJournals
from flumeng.agent.gateway.server import GatewayServer
from flumeng.agent.node.protocol import ALIVE_SECONDS, Message, Parent
from flumeng.config import policy
from flumeng.config.policy_file import PolicyFile
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore
from flumeng.platform import fail_fast, logs, processes
from flumeng.platform.errors import FlumengError, UserError
from flumeng.platform.metrics.health import Health
from flumeng.platform.security import process

STUCK_SECONDS = 60.0
RELIEVE_SECONDS = 2.0

parser = argparse.ArgumentParser(prog="flumeng.agent.gateway", description=__doc__)
parser.add_argument("--zk", required=True, help="host:port[,host:port]/chroot")
parser.add_argument("--node", required=True, help="the node that started this process")
parser.add_argument("--data", required=True, type=Path, help="the node's data directory")
parser.add_argument("--policy", type=Path, help="the file that limits flows on this node")
parser.add_argument("--host", default="127.0.0.1", help="the address for other sites")
parser.add_argument("--port", type=int, default=0, help="at that host; 0 for a free one")
parser.add_argument("--session-seconds", type=float, default=10.0)
parser.add_argument("--metrics-channel", type=int, help="the descriptor of metrics requests")


def main() -> int:
    given = parser.parse_args()
    logs.to_stderr("gateway")
    os.environ.setdefault(
        "GRPC_VERBOSITY", "NONE"
    )  # else strangers fill the log: a line a handshake
    parent = Parent.take_stdio()
    processes.go_on_without_parent()
    process.serve_as("gateway")
    health = Health(STUCK_SECONDS, time.monotonic)
    try:
        at_start = policy.load(given.policy)
        allowed = PolicyFile(given.policy, at_start)
        store = ZooKeeperStore(given.zk, given.session_seconds, roles=["gateway"])
        watch = FlowWatch(store, PositionWatcher(Addresses(store)))
        workers = FilterProcesses(given.policy)
        server = GatewayServer(
            given.host,
            given.port,
            store,
            watch,
            policy=allowed,
            filters=FlowFilters(store, at_start, workers),
            keystore=process.keystore(),
            local=LocalJournals(store, given.node, given.data),
        )
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    if given.metrics_channel is not None:
        from flumeng.platform.metrics import endpoint  # noqa: PLC0415  only then it costs memory

        endpoint.serve(
            "gateway",
            health,
            lambda: chain(store.readings(), server.readings()),
            descriptor=given.metrics_channel,
        )
    parent.send({"type": "ready", "address": server.address})
    fail_fast.every(IDLE_SECONDS, watch.drop_idle, "idle")
    fail_fast.every(IDLE_SECONDS, workers.end_unused, "unused")
    fail_fast.every(RELIEVE_SECONDS, lambda: _relieve(server), "leases")
    threading.Thread(target=_stay_alive, args=(parent, health), daemon=True).start()
    for message in parent.messages():
        if message["type"] == "configure":
            parent.send(_applied(message))
        elif message["type"] == "stop":
            break
    server.stop()
    workers.close()
    store.close()
    return 0


def _relieve(server: GatewayServer) -> None:
    with suppress(FlumengError):  # ZooKeeper is away: the next turn looks again
        server.relieve()


def _applied(message: Message) -> Message:
    """Return the status after a configuration; a gateway has no tasks."""
    return {"type": "status", "answers": message["number"], "tasks": {}}


def _stay_alive(parent: Parent, health: Health) -> None:
    while True:
        health.turned()
        parent.send({"type": "alive", "held": ""})
        time.sleep(ALIVE_SECONDS)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # a far reader that keeps its connection would hold up the exit
