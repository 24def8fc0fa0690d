"""Fixtures for tests against a real ZooKeeper.

By default one embedded server a test session. ``FLUMENG_TEST_ZK=host:port`` points the tests at a
server that runs already, ``FLUMENG_TEST_ZK=docker`` at a container. Each test gets a chroot of its
own. ``FLUMENG_TEST_EXAMPLES`` says how many examples are drawn by chance for a property.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from tests.reaper import pytest_configure
from tests.testkit.store import RealZooKeeper

__all__ = ["pytest_configure"]

os.environ.setdefault("FLUMENG_WARM_COLLECTOR", "no")  # a JVM on each node that may collect
os.environ.pop("XDG_RUNTIME_DIR", None)  # no command of a test leaves a JVM there for the next

TOP = Path(__file__).parents[1]
LANES = 4
SHARED = {"kafka": "RealKafka", "spark": "SparkSession", "standalone_of_all": "Standalone"}
"""Fixtures that take long to start; each worker shares one among all its tests."""
LONG = [
    *SHARED,
    *(
        f"tests/live/test_{name}.py"
        for name in (
            "how_to_operations",
            "how_to_security",
            "sql_poll",
            "chaos_branches",
            "replicas_chaos",
            "hostile_flows",
            "sites_script",
            "push_sites",
            "spark_cluster",
            "ensemble",
            "objects_chaos",
            "chaos",
            "replicas_takeover",
            "polls_chaos",
            "chaos_elasticsearch",
            "spark_keeper",
            "zookeeper_security",
            "upgrade",
            "lakes",
            "imports_while_collecting",
            "lines_live",
            "standby",
            "replicas_encrypted",
            "sink_chaos",
            "replicas_secured",
            "frozen_children",
            "secrets_live",
            "ingest_senders",
            "collector_live",
            "ingest_sources",
            "journal_crashes",
            "cli_live",
            "ingest_worker",
            "standalone",
            "journal_server",
            "sink_elasticsearch",
            "sink_postgres",
            "quickstart",
            "journal_durability",
        )
    ),
]
"""Groups of live files in the order in which they start, the longest first."""

os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""Servers and Spark live for seconds or minutes here: full compilation of their code would cost
more time than it saves."""

settings.register_profile(
    "untimed",
    deadline=None,  # machines are shared: speed is for benches
    max_examples=int(os.environ.get("FLUMENG_TEST_EXAMPLES", "100")),
)
settings.load_profile("untimed")


@cache
def unit_of(file: str) -> str:
    """The unit that one worker runs: all files that use a shared fixture, or one file."""
    text = (TOP / file).read_text()
    asked = (name for name, kind in SHARED.items() if re.search(rf"\b{name}: {kind}\b", text))
    return next(asked, file)


class InLanes(LoadScopeScheduling):  # type: ignore[misc]
    """Runs the tests of real processes on LANES workers while there are other tests, so that few of
    them compete for the processors.

    The longest go first, so that all workers end together.
    """

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.partition("::")[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        live = self.nodes.index(node) < LANES
        units = [unit for unit in self.workqueue if _is_live(unit) == live]
        if units:
            first = min(units, key=lambda unit: LONG.index(unit) if unit in LONG else len(LONG))
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def _is_live(unit: str) -> bool:
    return unit in SHARED or unit.startswith("tests/live/")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return InLanes(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        metavar="K/N",
        default="1/1",
        help="of N shares of the files with tests marked long, run the K-th only (0/1: none)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests marked long, but for those of the share that ``--long`` names."""
    number, count = map(int, config.getoption("--long").split("/"))
    long = [item for item in items if item.get_closest_marker("long")]
    files = sorted({item.path for item in long})
    share = set(files[number - 1 :: count] if number else ())
    left_out = {item for item in long if item.path not in share}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Takes what collecting made from the garbage collector, which else passes over it again and
    again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def default_log_level() -> None:
    """Each test starts with the log level WARNING, also after one that set up a process's log, and
    sees of kazoo only errors, as every daemon does."""
    logging.root.setLevel(logging.WARNING)
    logging.getLogger("kazoo").setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a real ZooKeeper."""
    wanted = os.environ.get("FLUMENG_TEST_ZK", "")
    if wanted == "docker":
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415  not without Docker
        from testcontainers.core.waiting_utils import wait_for_logs  # noqa: PLC0415  not without Docker

        with DockerContainer("zookeeper:3.9.5").with_exposed_ports(2181) as container:
            wait_for_logs(container, "PrepRequestProcessor", timeout=60)
            yield f"{container.get_container_host_ip()}:{container.get_exposed_port(2181)}"
    elif wanted:
        yield wanted
    else:
        server = RealZooKeeper(tmp_path_factory.mktemp("zookeeper"))
        server.start()
        yield server.address
        server.kill()


@pytest.fixture
def hosts(zookeeper: str) -> str:
    """A connect string with a chroot of its own."""
    return f"{zookeeper}/test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store(hosts: str) -> Iterator[Store]:
    store = connect(hosts)
    yield store
    store.close()
