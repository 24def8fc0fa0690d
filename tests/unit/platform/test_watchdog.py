"""A daemon whose loop hangs ends itself; one that stood still as a whole goes on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from flumeng.agent.node import daemon
from flumeng.agent.node.registration import Identity, Registration
from flumeng.control.master import measures
from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import Refused, Write
from flumeng.platform import watchdog
from flumeng.platform.metrics.health import Health
from flumeng.platform.watchdog import CHECK_SECONDS, EXIT_CODE, ServiceManager, Watchdog
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_node, new_cluster
from tests.testkit.light_nodes import ClaimsInMemory
from tests.testkit.store import FakeStore, FakeTree
from tests.unit.control.test_master_troubles import apply

PATIENCE_SECONDS = 60.0
LOOP = """
import logging, sys, time, threading
logging.basicConfig(stream=sys.stderr)
from flumeng.platform.metrics.health import Health
from flumeng.platform.watchdog import Watchdog
health = Health(2.0)
Watchdog("master", health).start()

def loop():
    for _ in range({turns}):
        health.turned()
        print("turned", flush=True)
        time.sleep(0.05)

def wait_for_ever():
    {hang}

loop()
wait_for_ever()
"""
HANGS = {
    "a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "the lock of its log": "logging.root.handlers[0].acquire(); time.sleep(3600)",
    "an endless loop": "while True: pass",
}


def started(script: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[3],
    )


@pytest.mark.slow
@pytest.mark.parametrize("hang", HANGS)
def test_daemon_whose_loop_hangs_ends_with_its_own_exit_code(hang: str) -> None:
    process = started(LOOP.format(turns=3, hang=HANGS[hang]))
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == EXIT_CODE
    if "log" not in hang:
        assert "ERROR" in errors
        assert "the main loop has not turned" in errors
        assert "in wait_for_ever" in errors, "the stack says where"


@pytest.mark.slow
def test_frozen_daemon_continues() -> None:
    process = started(LOOP.format(turns=10**6, hang="pass"))
    assert process.stdout is not None
    try:
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(5.0)
        process.send_signal(signal.SIGCONT)
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            assert process.stdout.readline(), "it has ended"
    finally:
        process.kill()
        process.communicate()


class EndedError(Exception):
    pass


def end(code: int) -> None:
    raise EndedError(code)


def checked(seconds: int, dog: Watchdog, clock: Clock) -> None:
    for _ in range(seconds):
        clock.now += CHECK_SECONDS
        dog.check()


def test_only_time_in_which_the_process_ran_counts() -> None:
    clock = Clock()
    health = Health(60.0, clock)
    dog = Watchdog("node", health, clock=clock, end=end)
    health.turned()
    checked(50, dog, clock)
    clock.now += 3600.0
    dog.check()
    checked(8, dog, clock)
    with pytest.raises(EndedError):
        checked(3, dog, clock)


def test_loop_may_rest_as_long_as_it_says() -> None:
    clock = Clock()
    health = Health(60.0, clock)
    dog = Watchdog("master", health, clock=clock, end=end)
    health.turned(next_within_seconds=30.0)
    checked(90, dog, clock)
    with pytest.raises(EndedError, match=str(EXIT_CODE)):
        checked(2, dog, clock)


class Systemd:
    """Receives the notifications of a daemon."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(PATIENCE_SECONDS)

    def reported(self) -> str:
        return self._socket.recv(4096).decode()

    def reports_within(self, seconds: float) -> bool:
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(4096)
        except TimeoutError:
            return False
        return True


@pytest.mark.slow
def test_turns_of_the_loop_are_reported_to_systemd(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path / "notify")
    script = LOOP.format(turns=60, hang="time.sleep(3600)")
    process = started(script, NOTIFY_SOCKET=str(tmp_path / "notify"))
    try:
        assert systemd.reported() == "READY=1\nWATCHDOG=1"
        assert systemd.reported() == "WATCHDOG=1"
        assert process.wait(PATIENCE_SECONDS) == EXIT_CODE
        while systemd.reports_within(0.1):
            pass
    finally:
        process.kill()
        process.communicate()


def test_hung_loop_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    systemd = Systemd(tmp_path / "notify")
    clock = Clock()
    health = Health(60.0, clock)
    dog = Watchdog("master", health, clock=clock, end=end)
    health.on_turn = dog._report
    health.turned()
    assert systemd.reported() == "READY=1\nWATCHDOG=1"
    checked(60, dog, clock)
    assert not systemd.reports_within(0.05), "a thread that only checks proves nothing"
    assert "NOTIFY_SOCKET" not in os.environ, "not meant for children"


def test_systemd_that_is_gone_harms_nothing(tmp_path: Path) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none")}).notify("READY=1")
    ServiceManager({"NOTIFY_SOCKET": "@flumeng-test-none"}).notify("READY=1")
    ServiceManager({}).notify("READY=1")


NODE = "-m flumeng.agent.node --zk 127.0.0.1:1 --name n1 --data {data}"
MASTER = "-m flumeng.control.master 127.0.0.1:1"


@pytest.mark.slow
@pytest.mark.parametrize("daemon", [MASTER, NODE], ids=["master", "node"])
def test_daemon_without_zookeeper_is_ready_and_goes_on_turning(daemon: str, tmp_path: Path) -> None:
    systemd = Systemd(tmp_path / "notify")
    process = subprocess.Popen(
        [sys.executable, *daemon.format(data=tmp_path / "data").split()],
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        cwd=Path(__file__).parents[3],
        stderr=subprocess.DEVNULL,
    )
    try:
        assert systemd.reported() == "READY=1\nWATCHDOG=1"
        assert [systemd.reported() for _ in range(3)] == ["WATCHDOG=1"] * 3
    finally:
        process.kill()
        process.wait()


HUNG = {
    "master": """
import time
from flumeng.control.master import daemon, measures
measures.STUCK_SECONDS = 1.0
daemon.Master.attempt = lambda self: time.sleep(3600)
daemon.run("127.0.0.1:1")
""",
    "node": """
import sys, time
from pathlib import Path
from flumeng.agent.node import daemon
from flumeng.agent.node.settings import Settings
daemon.STUCK_SECONDS = 1.0
daemon.Node._try_claim = lambda self: time.sleep(3600)
daemon.run(Settings(name="n1", data=Path(sys.argv[1]), hosts="127.0.0.1:1"))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("daemon", HUNG)
def test_hung_master_and_node_end_themselves(daemon: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HUNG[daemon], str(tmp_path / "data")],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == EXIT_CODE


class Slow(FakeStore):
    """Takes 100 s for each group of writes, and records whether the loop counts as hung."""

    def __init__(self, tree_: FakeTree, clock: Clock) -> None:
        super().__init__(tree_)
        self.clock = clock
        self.master: Master | None = None
        self.stuck: list[str | None] = []

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> list[Refused]:
        self.clock.now += 100.0
        assert self.master is not None
        self.stuck.append(self.master.measures.health.stuck)
        return super().commit_each(transactions)


def test_long_tick_with_progress_is_no_hang() -> None:
    clock = Clock()
    store = new_cluster()
    for name in ("n1", "n2"):
        add_node(store, name)
    for number in range(5):
        apply(store, f"f{number}")
    slow = Slow(store.tree, clock)
    slow.master = Master(slow, "m1", clock)
    slow.master.measures.health.turned()
    began = clock.now
    slow.master.tick()
    assert clock.now - began > measures.STUCK_SECONDS
    slow.master.tick()
    assert not any(slow.stuck)


def test_node_that_registers_many_journals_is_no_hang() -> None:
    store = new_cluster()
    turns: list[None] = []
    me = Identity("n1", "u", ("ingest",), "", {})
    znodes = Registration(store, me, ClaimsInMemory())
    znodes.znodes.on_progress = lambda: turns.append(None)
    znodes.register()
    local = {
        f"f.n1.0.{number:08x}": {"flow": "f", "term": 1, "closed": False, "end": 0}
        for number in range(20)
    }
    znodes.journals.enter(local)
    assert len(turns) == len(local)


def test_limit_of_systemd_is_above_the_one_of_the_daemon() -> None:
    """So that the daemon itself can log where it hangs."""
    rests = {"master": measures.STUCK_SECONDS + 10.0, "node": daemon.STUCK_SECONDS}
    units = Path(__file__).parents[3] / "conf" / "systemd"
    for name, seconds in rests.items():
        lines = (units / f"flumeng-{name}.service").read_text().splitlines()
        (limit,) = (line for line in lines if line.startswith("WatchdogSec="))
        assert int(limit.partition("=")[2]) > seconds + watchdog.LOG_SECONDS + CHECK_SECONDS
        assert "Type=notify" in lines
        assert "Restart=always" in lines
