"""What TLS costs where events come in and where acks are written, each beside the same in the open.

Both take turns, so that they meet the same machine; told is the median of the rounds' ratios.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benches import acks, ingest
from flumeng.agent.collector.publisher import Publisher
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.roles import DIRECTORY, Role
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.store import RealZooKeeper

ROUNDS = 3
TASKS, PARTITIONS_OF_TASK = 40, 100


def run(events: int) -> dict[str, Any]:
    """Rates are events, and acks, a second; ratios are those over TLS by those in the open."""
    with tempfile.TemporaryDirectory(prefix="flumeng-bench-") as folder:
        certificates = Certificates(Path(folder) / "certificates")
        return {**_ingest(certificates, events), **_acks(Path(folder), certificates)}


def _ingest(certificates: Certificates, events: int) -> dict[str, Any]:
    """syslog over one connection, each event synced to disk."""
    files = Keystore(certificates.folder("node"), "node")
    tls = f", tls: {{certificate: {files.certificate}, key: {files.key}}}"
    plain: list[float] = []
    secure: list[float] = []
    for _ in range(ROUNDS):
        plain.append(ingest.measure("stream", events)["rate"])
        secure.append(ingest.measure("tls_stream", events, options=tls)["rate"])
    return {
        "ingest_plain_events_per_second": round(median(plain)),
        "ingest_tls_events_per_second": round(median(secure)),
        "ingest_tls_ratio": _ratio(secure, plain),
    }


def _acks(folder: Path, certificates: Certificates) -> dict[str, Any]:
    """Of collectors, to a server of a secured cluster, with access lists, and to an open one."""
    shares = acks.shares_of("fast", TASKS, PARTITIONS_OF_TASK)
    plain: list[float] = []
    secure: list[float] = []
    with (
        _open_cluster(folder, shares) as open_store,
        _secured_cluster(folder, certificates, shares) as secured_store,
    ):
        for _ in range(ROUNDS):
            for store, rates in ((open_store, plain), (secured_store, secure)):
                tasks = acks.claim(store, Publisher(store), shares)
                rates.append(acks.acks_per_second(tasks))
                acks.check(store, tasks)
    return {
        "acks_plain_per_second": round(median(plain)),
        "acks_tls_per_second": round(median(secure)),
        "acks_tls_ratio": _ratio(secure, plain),
    }


@contextmanager
def _open_cluster(folder: Path, shares: list[list[str]]) -> Iterator[Store]:
    server = RealZooKeeper(folder / "open")
    server.start()
    store = connect(f"{server.address}/bench")
    try:
        _prepare(store)
        acks.register(store, shares)
        yield store
    finally:
        store.close()
        server.kill()


@contextmanager
def _secured_cluster(
    folder: Path, certificates: Certificates, shares: list[list[str]]
) -> Iterator[Store]:
    server = RealZooKeeper(folder / "secured", certificates.folder("zookeeper", name="zk1"))
    server.start()
    opened: list[Store] = []

    def as_role(role: Role, name: str) -> Store:
        os.environ[DIRECTORY] = str(certificates.folder(role, name=name))
        try:
            opened.append(connect(f"{server.address}/bench", roles=[role]))
        finally:
            del os.environ[DIRECTORY]
        return opened[-1]

    try:
        admin = as_role("admin", "root")
        _prepare(admin)
        secure_cluster(
            Operator(admin, "bench", "", time.time()), cluster=CLUSTER, admit=["node:n1"], expel=[]
        )
        acks.register(as_role("node", "n1"), shares)
        yield as_role("collector", "n1")
    finally:
        for store in opened:
            store.close()
        server.kill()


def _prepare(store: Store) -> None:
    tree.init(store)
    apply_flow(Operator(store, "bench", "", time.time()), acks.FLOW)


def _ratio(secure: list[float], plain: list[float]) -> float:
    return round(median(one / other for one, other in zip(secure, plain, strict=True)), 3)
