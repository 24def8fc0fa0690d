"""How long it takes to apply a flow in a secured cluster with very many members."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.security.roles import DIRECTORY
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.store import RealZooKeeper

FLOW = "flow: web\nsources: [tail: {paths: [/var/log/web.log]}]\nsinks: [noop]\n"


def measure(members: int = 20_000) -> dict[str, float]:
    """Seconds to admit so many nodes, to admit one more, and to apply one flow then; on a real
    ZooKeeper with TLS."""
    with tempfile.TemporaryDirectory() as top:
        certificates = Certificates(Path(top) / "certificates")
        folder = certificates.folder("zookeeper", "admin", name="zk1")
        server = RealZooKeeper(Path(top) / "zookeeper", folder)
        server.start()
        before = os.environ.get(DIRECTORY)
        os.environ[DIRECTORY] = str(folder)
        try:
            store = connect(f"{server.address}/bench", session_seconds=30.0, roles=["admin"])
            try:
                return _measured(store, members)
            finally:
                store.close()
        finally:
            server.kill()
            os.environ.pop(DIRECTORY)
            if before is not None:
                os.environ[DIRECTORY] = before


def _measured(store: Store, members: int) -> dict[str, float]:
    tree.init(store)
    names = [f"node:ingest-{number:05}.fra1.example.net" for number in range(members)]
    admitted = _seconds(store, names)
    one_more = _seconds(store, ["node:one-more"])
    started = time.perf_counter()
    apply_flow(Operator(store, "bench", "", time.time()), FLOW)
    applied = time.perf_counter() - started
    return {
        f"members_{members}_apply_seconds": applied,
        f"members_{members}_admit_seconds": admitted,
        "member_admit_seconds": one_more,
    }


def _seconds(store: Store, names: list[str]) -> float:
    started = time.perf_counter()
    secure_cluster(Operator(store, "bench", "", time.time()), cluster=CLUSTER, admit=names)
    return time.perf_counter() - started
