"""Fixtures for tests against a real ZooKeeper.

By default one embedded server a test session. ``FLUMENG_TEST_ZK=host:port`` points the tests at a
server that runs already, ``FLUMENG_TEST_ZK=docker`` at a container. Each test gets a chroot of its
own. ``FLUMENG_TEST_EXAMPLES`` says how many examples are drawn by chance for a property.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from flumeng.store import Store
from flumeng.store.zookeeper import connect
from flumeng.testing import RealZooKeeper

LANES = 2

os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""Servers and Spark live for seconds or minutes here: compiling them as for days costs more than it
gives."""

settings.register_profile(
    "untimed",
    deadline=None,  # machines are shared: speed is for benches
    max_examples=int(os.environ.get("FLUMENG_TEST_EXAMPLES", "100")),
)
settings.load_profile("untimed")


class InLanes(LoadScopeScheduling):  # type: ignore[misc]
    """Whole files, and those of real processes in lanes, so that few of them take turns with the
    processors."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._lanes: dict[str, int] = {}

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if not file.startswith("tests/live/"):
            return file
        return f"live {self._lanes.setdefault(file, len(self._lanes) % LANES)}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return InLanes(config, log)


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
    """A connect string with a chroot that nobody else uses."""
    return f"{zookeeper}/test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store(hosts: str) -> Iterator[Store]:
    store = connect(hosts)
    yield store
    store.close()
