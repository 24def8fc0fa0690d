"""``flumeng zookeeper`` on a disk that fills up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from flumeng.agent.standalone.embedded import free_port
from tests.testkit.daemons import start_logged
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a small disk needs root")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> Path:
    file = disk / "filling"
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filling:
        while True:
            filling.write(bytes(65536))
    return file


@pytest.mark.long
def test_zookeeper_that_ended_on_a_full_disk_runs_again_when_there_is_room(
    disk: Path, tmp_path: Path
) -> None:
    port = free_port()
    command = [sys.executable, "-c", "from cli.main import main; main()", "zookeeper"]
    command += ["--data", str(disk / "zookeeper"), "--port", str(port)]
    server = start_logged(tmp_path / "log", *command)
    client = KazooClient(f"127.0.0.1:{port}")
    try:
        client.start(timeout=60)
        client.create("/kept", b"before")
        filling = fill(disk)
        with contextlib.suppress(KazooException):
            for number in range(100):
                client.create(f"/large{number}", bytes(100_000))
        wait_for(
            lambda: b"ended with exit code" in (tmp_path / "log").read_bytes(), "it does not end"
        )
        filling.unlink()

        def writes() -> bool:
            with contextlib.suppress(KazooException):
                client.create("/after", b"", makepath=True)
            with contextlib.suppress(KazooException):
                return client.exists("/after") is not None
            return False

        wait_for(writes, "it is not started again")
        assert client.get("/kept")[0] == b"before"
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0
    finally:
        server.kill()
        client.stop()
        client.close()
