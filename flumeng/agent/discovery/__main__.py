"""``python -m flumeng.agent.discovery``: a node starts it and speaks with it over pipes."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from flumeng.agent.discovery.accounts import PartitionAccounts
from flumeng.agent.discovery.scaler import scale
from flumeng.agent.discovery.worker import MakeFinders, Worker
from flumeng.agent.node.protocol import Parent
from flumeng.agent.node.target_checks import TargetChecks
from flumeng.config import policy
from flumeng.config.flow import FlowSpec
from flumeng.config.policy import Policy
from flumeng.connectors.api.finding import Finder, FinderClass, FindingTask
from flumeng.connectors.ranged.runtime import finder_class
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore
from flumeng.journal.serving.action_server import PartitionServer
from flumeng.journal.serving.wire import CHECK_TARGETS
from flumeng.platform import fail_fast, logs, processes, secrets
from flumeng.platform.errors import UserError
from flumeng.platform.metrics.table import Reading
from flumeng.platform.security import process

parser = argparse.ArgumentParser(prog="flumeng.agent.discovery", description=__doc__)
parser.add_argument("--zk", required=True, help="host:port[,host:port]/chroot")
parser.add_argument("--node", required=True, help="the node that started this process")
parser.add_argument("--data", required=True, type=Path, help="the node's data directory")
parser.add_argument("--policy", type=Path, help="the file that limits flows on this node")
parser.add_argument("--host", default="127.0.0.1", help="the address of this process for others")
parser.add_argument("--port", type=int, default=0, help="at that host; 0 for a free one")
parser.add_argument("--session-seconds", type=float, default=10.0)
parser.add_argument("--metrics-channel", type=int, help="the descriptor of metrics requests")


def main() -> int:
    given = parser.parse_args()
    logs.to_stderr("discover")
    parent = Parent.take_stdio()
    processes.go_on_without_parent()
    try:
        allowed = policy.load(given.policy)
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    secrets.use(allowed.secrets)
    process.serve_as("discovery")
    store = ZooKeeperStore(given.zk, given.session_seconds, roles=["discovery"])
    worker = Worker(parent, store, finders_of(allowed, store))
    if given.metrics_channel is not None:
        from flumeng.platform.metrics import endpoint  # noqa: PLC0415  # only then it costs memory

        def readings() -> Iterator[Reading]:
            yield from store.readings()
            for task in worker.tasks.values():
                yield from task.readings()

        endpoint.serve("discover", worker.health, readings, descriptor=given.metrics_channel)
    accounts = PartitionAccounts(lambda: worker.tasks)
    accounts.start()
    fail_fast.start("scaling", lambda: scale(lambda: worker.scalers, accounts))
    try:
        checks = TargetChecks(given.data, given.policy, allowed)
        server = PartitionServer(
            given.host,
            accounts,
            given.port,
            actions={CHECK_TARGETS: checks.answer},
            keystore=process.keystore(),
        )
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    worker.run(server.address)
    store.close()
    return 0


def finders_of(allowed: Policy, store: Store) -> MakeFinders:

    def make(spec: FlowSpec, task: FindingTask) -> list[Finder]:
        for part in spec.partitioned:
            allowed.require(part)
        return [_class_of(part.name).of(part.options, store, task) for part in spec.partitioned]

    return make


def _class_of(source: str) -> FinderClass:
    try:
        return cast("FinderClass", finder_class(source))
    except ImportError as missing:
        raise UserError(f"the source {source} needs a package: {missing}") from missing


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # librdkafka's threads end with the process; nothing waits for them
