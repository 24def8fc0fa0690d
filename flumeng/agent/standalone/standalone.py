"""ZooKeeper, a master and a node on one host: the usual daemons under one parent. The parent starts
the three in this order, restarts those that end, and stops them in the reverse order."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from flumeng.agent.standalone import embedded
from flumeng.config import check_flow
from flumeng.control.commands import membership
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import Store, Versioned, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform import private_directory, processes
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.java import find_java
from flumeng.platform.metrics import table
from flumeng.platform.metrics.channel import Channel
from flumeng.platform.metrics.endpoint import Endpoint
from flumeng.platform.metrics.health import Health
from flumeng.platform.metrics.instruments import Instruments
from flumeng.platform.metrics.table import Reading
from flumeng.platform.processes import PYTHON
from flumeng.platform.security import process
from flumeng.platform.watchdog import Watchdog
from zkschema import paths
from zkschema.records import TaskStatus

log = logging.getLogger(__name__)

T = TypeVar("T")

CHROOT = "flumeng"
NODE = "node1"
START_SECONDS = 180.0
OTHERS_SECONDS = 30.0
"""Longest time that a start waits for flows that already existed."""
STOP_SECONDS = 9.0
LOOK_SECONDS = 0.1
RESTART_SECONDS = 1.0
STUCK_SECONDS = 30.0
ASK_SECONDS = 6.0
"""Timeout of the node's answer; the node may wait half as long for its own children."""


@dataclass
class Daemon:
    name: str
    command: Sequence[str]
    log_file: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    starts: int = 0
    measured: bool = True
    channel: Channel | None = None

    def keep_up(self) -> None:
        """Start the daemon unless it runs; at most once a second."""
        if self.process is not None and self.process.poll() is None:
            return
        if time.monotonic() - self.started < RESTART_SECONDS:
            return
        if self.process is not None:
            log.warning(
                "process %s ended with code %s: restarting", self.name, self.process.returncode
            )
            self.process = None
        self.started = time.monotonic()
        self.starts += 1
        try:
            self._start()
        except (OSError, RuntimeError) as error:  # no room for a process, a thread, a descriptor
            log.warning("process %s cannot be started, retrying: %s", self.name, error)

    def _start(self) -> None:
        channel = Channel(self.name) if self.measured else None
        inherited = [channel.descriptor] if channel else []
        command = [*self.command, *(f"--metrics-channel={number}" for number in inherited)]
        try:
            with open(self.log_file, "ab", opener=private_directory.open_private) as output:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=inherited,
                )
        finally:
            if channel is not None:
                channel.child_started()
        self.channel = channel

    def stop(self, deadline: float) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("process %s did not stop in time and was killed", self.name)
            self.process.kill()
            self.process.wait()


@dataclass
class Standalone:
    """A cluster on one host, with all its data in ``data``. With an administrator's certificate the
    cluster is secured from the start: this needs certificates of all processes too."""

    data: Path
    zk_port: int
    daemons: list[Daemon] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    health: Health = field(default_factory=lambda: Health(STUCK_SECONDS))
    up: bool = False
    node: str = field(default_factory=lambda: process.member("node").removeprefix("node:") or NODE)

    def __post_init__(self) -> None:
        self.health.needs(lambda: None if self.up else "the flows do not run yet")

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.zk_port}/{CHROOT}"

    def start(self) -> Store:
        logs = self.data / "logs"
        private_directory.make_private(self.data, ["logs"])
        try:
            logs.mkdir(exist_ok=True, mode=private_directory.DIRECTORY_MODE)
        except OSError as error:
            raise UserError(f"cannot write to {self.data}: {error.strerror}") from error
        find_java()
        self.zk_port = self.zk_port or embedded.free_port()
        embedded.require_free("127.0.0.1", self.zk_port)
        zookeeper = [str(self.data / "zookeeper"), str(self.zk_port)]
        node = ["--data", str(self.data / "node"), "--name", self.node, "--zk", self.hosts]
        self._add("zookeeper", ["flumeng.agent.standalone.embedded", *zookeeper], measured=False)
        _tell("starting ZooKeeper")
        store = self._wait_for(self._connect, "ZooKeeper")
        tree.init(store)
        self._secure(store)
        _tell("starting a master and a node")
        self._add("master", ["flumeng.control.master", self.hosts])
        self._add("node", ["flumeng.agent.node", *node])
        return store

    def _secure(self, store: Store) -> None:
        cluster = process.administered_cluster()
        if cluster is not None:
            admitted = membership.members(store, tree.require(store))
            members = {f"node:{self.node}", *process.operators()}.difference(admitted)
            secure_cluster(
                Operator(store, author=_author(), reason="standalone", now=time.time()),
                cluster=cluster,
                admit=sorted(members),
            )

    def wait_running(self, store: Store, given: Collection[str]) -> None:
        """Wait until every task of every flow runs. Raises UserError when one of the flows
        ``given`` fails or takes too long; problems of other flows are only logged."""
        patience = time.monotonic() + OTHERS_SECONDS

        def running() -> Progress | None:
            node = self.daemons[-1].process
            try:
                progress = Progress(store, self.node, node.pid if node else 0, given)
            except UnavailableError:
                return None
            progress.require_given()
            ready = progress.is_up and progress.given_run
            return progress if ready and (not progress.waiting or late()) else None

        def late() -> bool:
            return time.monotonic() > patience

        _tell("waiting until the flows run")
        progress = self._wait_for(running, "the flows")
        for flow, why in (progress.failed | progress.waiting).items():
            log.warning("flow %s does not run: %s", flow, why)
        self.up = True

    def supervise(self) -> None:
        self.health.turned()
        Watchdog("standalone", self.health).start()
        while not self.stopping.wait(LOOK_SECONDS):
            self._keep_up()

    def channels(self) -> dict[str, Channel]:
        return {d.name: d.channel for d in self.daemons if d.channel is not None}

    def readings(self) -> Iterator[Reading]:
        for daemon in list(self.daemons):
            yield table.CHILD_STARTS.of(daemon.starts, daemon.name)

    def stop(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        for daemon in reversed(self.daemons):
            daemon.stop(deadline)

    def _keep_up(self) -> None:
        self.health.turned()
        for daemon in self.daemons:
            daemon.keep_up()

    def _add(self, name: str, module: Sequence[str], *, measured: bool = True) -> None:
        command = [*PYTHON, *module]
        log_file = self.data / "logs" / f"{name}.log"
        daemon = Daemon(name, command, log_file, measured=measured)
        daemon.keep_up()
        self.daemons.append(daemon)

    def _connect(self) -> Store | None:
        try:
            return connect(self.hosts, wait_seconds=1.0)
        except UnavailableError:
            return None

    def _wait_for(self, attempt: Callable[[], T | None], what: str) -> T:
        deadline = time.monotonic() + START_SECONDS
        while not self.stopping.is_set():
            result = attempt()
            if result is not None:
                return result
            self._keep_up()
            if time.monotonic() > deadline:
                raise UserError(
                    f"{what} did not come up within {START_SECONDS:.0f} s: see {self.data / 'logs'}"
                )
            self.stopping.wait(LOOK_SECONDS)
        raise SystemExit(0)


def run(
    data: Path,
    *,
    zk_port: int = 0,
    flows: Sequence[str] = (),
    metrics: str = "127.0.0.1:0",
    beside: Callable[[str], Mapping[str, str]] = lambda _hosts: {},
) -> None:
    """Run until SIGTERM or SIGINT. ``flows``: texts of flow files to apply. Prints ``ready zk=...
    metrics=...`` when every flow runs, or when ``flows`` run and other flows have failed or taken
    OTHERS_SECONDS. ``beside`` gets the address of ZooKeeper once it answers, and returns what else
    is printed. Raises UserError for Java, a port, the directory or one of ``flows``."""
    processes.forbid_core_dumps()
    given = [check_flow(text).flow for text in flows]
    standalone = Standalone(data.absolute(), zk_port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: standalone.stopping.set())
    instruments = Instruments(
        "standalone", standalone.health, standalone.readings, standalone.channels, ASK_SECONDS
    )
    endpoint = Endpoint(metrics, instruments)
    try:
        store = standalone.start()
        more = {"metrics": endpoint.url, **beside(standalone.hosts)}
        for text in flows:
            apply_flow(
                Operator(store, author=_author(), reason="standalone --flow", now=time.time()), text
            )
        standalone.wait_running(store, given)
        store.close()
        said = " ".join(f"{what}={url}" for what, url in more.items())
        print(f"ready zk={standalone.hosts} {said}", flush=True)
        standalone.supervise()
    finally:
        standalone.stop()


def _tell(doing: str) -> None:
    """Print what the start does to standard error: it may take a minute."""
    print(f"flumeng: {doing}", file=sys.stderr, flush=True)


def _author() -> str:
    return f"standalone@{socket.gethostname()}"


class Progress:
    """The state of a cluster's flows, from the status of its ``node`` with process ``pid``.
    ``waiting`` and ``failed``: the reasons, by flow, of flows that do not run."""

    def __init__(self, store: Store, node: str, pid: int, given: Collection[str]) -> None:
        self._given = given
        self.waiting: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        (live,) = store.read_each([paths.live_node(node)])
        (status,) = store.read_each([paths.status(node)])
        self.is_up = (
            isinstance(live, Versioned)
            and isinstance(status, Versioned)
            and live.value.pid == pid
            and all(live.value.addresses)
        )
        if isinstance(status, Versioned) and self.is_up:
            self._judge(store, status.value.tasks)

    def _judge(self, store: Store, statuses: Mapping[str, TaskStatus]) -> None:
        names = store.children(paths.flows())
        flows = store.read_each([paths.flow(name) for name in names])
        plans = read_plans(store, names)
        for name, flow in zip(names, flows, strict=True):
            if not isinstance(flow, Versioned) or flow.value.state != "running":
                continue
            tasks = plans[name].value.tasks if name in plans else {}
            reported = {task: statuses.get(f"{name}/{task}") for task in tasks}
            failed = [task.error for task in reported.values() if task and task.state == "failed"]
            still = [key for key, task in reported.items() if task is None or not task.works]
            if failed:
                self.failed[name] = failed[0] or "no reason was reported"
            elif still or not tasks:
                self.waiting[name] = f"{', '.join(still)} not running" if still else "not planned"

    def require_given(self) -> None:
        for flow in self._given:
            if flow in self.failed:
                raise UserError(f"flow {flow} cannot run: {self.failed[flow]}")

    @property
    def given_run(self) -> bool:
        return not self.waiting.keys() & set(self._given)
