"""Hosts that hold replicas of journals: namespaces with addresses, disks and wires of their own.

Each host is a namespace on one bridge. On the bridge's address are ZooKeeper, the master and the
node that collects. Wires are cut by routes into nowhere; a power cut discards unsynced writes of a
disk.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.zookeeper import Versioned, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform import secrets
from flumeng.platform.security.roles import DIRECTORY, Role
from tests.live.chaos import child_of, descendants
from tests.live.power_cut import PowerCut
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.certificates import HOSTS as LOOPBACK
from tests.testkit.daemons import start_logged
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.records import Journal

SESSION_SECONDS = 4
PORT = 9000
GATEWAY_PORT = 9000
_MADE = itertools.count()
FLOW = "web"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def can_make_hosts() -> bool:
    return os.geteuid() == 0 and None not in (shutil.which("ip"), shutil.which("nsenter"))


class Forwarder:
    """Forwards connections from an address of the bridge to a server on loopback."""

    def __init__(self, host: str, port: int) -> None:
        self._port = port
        self._listener = socket.create_server((host, 0), backlog=64)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port)) as server,
        ):
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()
            _pump(client, server)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class Host:
    """One network namespace with a node in it. ``address`` is its own; ``secrets`` is a folder that
    may be missing."""

    def __init__(self, hosts: Hosts, number: int) -> None:
        self.name, self.address = f"n{number}", f"{hosts.prefix}.{number}"
        self.namespace = f"{hosts.bridge}n{number}"
        self.process: subprocess.Popen[bytes] | None = None
        self.power = PowerCut(hosts.folder / f"power{number}", megabytes=512)
        self.secrets = hosts.folder / f"secrets{number}"
        self._hosts = hosts
        ip("netns", "add", self.namespace)
        outside = f"{hosts.bridge}v{number}"
        ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        ip("link", "set", outside, "master", hosts.bridge, "up")
        ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.namespace, "link", "set", "eth0", "up")
        ip("-n", self.namespace, "link", "set", "lo", "up")

    @property
    def data(self) -> Path:
        return self.power.place / "data"

    def start(self, *roles: str, label: str = "") -> None:
        roles = roles or ("ingest", "replica")
        # Not `ip netns exec`: that has a mount of its own of each disk, which no power cut reaches.
        command = ["nsenter", f"--net=/run/netns/{self.namespace}"]
        command += node_command(self._hosts.zk, self.name)
        command += ["--data", str(self.data), "--host", self.address]
        command += [] if self._hosts.certificates else ["--insecure"]
        command += [text for role in roles for text in ("--role", role)]
        command += ["--label", label] if label else []
        environment = {
            **self._hosts.proving("node", name=self.name, address=self.address),
            secrets.DIRECTORY: str(self.secrets),
        }
        self.process = start_logged(
            self._hosts.folder / f"{self.name}.log", *command, env=environment
        )

    def give_key(self, secret: str) -> None:
        """Provide ``${secret:journal}``; the node may run already."""
        self.secrets.mkdir(mode=0o700, exist_ok=True)
        file = self.secrets / "journal"
        file.touch(mode=0o600)
        file.write_text(secret)

    @property
    def said(self) -> str:
        """The log of its processes."""
        return (self._hosts.folder / f"{self.name}.log").read_text()

    @property
    def worker(self) -> int | None:
        return child_of(self.pid, "flumeng.agent.ingest") if self.process else None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def tree(self) -> list[int]:
        return [self.pid, *descendants(self.pid)] if self.process else []

    def kill(self) -> None:
        """Kill the node with all its children."""
        for pid in self.tree:
            _signal(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def kill_worker(self) -> None:
        if (pid := self.worker) is not None:
            _signal(pid, signal.SIGKILL)

    def pause(self, *, worker_only: bool = False) -> list[int]:
        """Stop the processes with SIGSTOP; returns the argument of ``resume``."""
        pids = [pid for pid in ([self.worker] if worker_only else self.tree) if pid is not None]
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        return pids

    def resume(self, pids: list[int]) -> None:
        for pid in pids:
            _signal(pid, signal.SIGCONT)

    def cut_to(self, address: str) -> None:
        """Drop packets to this address; packets from it still arrive."""
        ip("-n", self.namespace, "route", "replace", "blackhole", f"{address}/32")

    def heal(self) -> None:
        for address in (self._hosts.address, *(h.address for h in self._hosts.all)):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("-n", self.namespace, "route", "del", "blackhole", f"{address}/32")

    def lose_power(self, rng: random.Random) -> None:
        self.kill()
        self.power.strike(rng.choice(range(3)))

    def stop(self) -> None:
        with contextlib.ExitStack() as ends:
            ends.callback(ip, "netns", "del", self.namespace)
            ends.callback(self.power.stop)
            self.kill()


class Hosts:
    """``count`` hosts, ZooKeeper, and a master; with ``collect`` a node that collects. With
    ``certificates`` the cluster is secured, and all of these are its members."""

    def __init__(self, folder: Path, count: int, certificates: Certificates | None = None) -> None:
        self.folder, self.certificates = folder, certificates
        number = (os.getpid() * 16 + next(_MADE)) % 30_000  # a removed bridge lingers for a moment
        self.bridge = f"fl{number}"
        self.prefix = f"10.{64 + number // 250 % 128}.{number % 250}"
        self.address = f"{self.prefix}.254"
        self.zookeeper = RealZooKeeper(folder / "zookeeper", self._identity("zookeeper"))
        self.others: list[subprocess.Popen[bytes]] = []
        self.all: list[Host] = []
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        self.zookeeper.start()
        self._forwarder = Forwarder(self.address, self.zookeeper.port)
        self.zk = f"{self._forwarder.address}/copies"
        with pytest.MonkeyPatch.context() as environment:
            environment.setattr(os, "environ", self.proving("admin"))
            self.store = connect(self.zk, roles=["admin"])
        tree.init(self.store)
        if certificates is not None:
            self._secure(count)
        self._spawn("master", [sys.executable, "-m", "flumeng.control.master", self.zk], "master")
        try:
            for number in range(1, count + 1):
                self.all.append(Host(self, number))
        except BaseException:
            self.stop()
            raise

    def _secure(self, count: int) -> None:
        members = ["node:collector", *(f"node:n{number}" for number in range(1, count + 1))]
        secure_cluster(Operator(self.store, "test", "", 1.0), cluster=CLUSTER, admit=members)

    def _identity(self, *roles: Role, name: str = "", address: str = "") -> Path | None:
        if self.certificates is None:
            return None
        hosts = (*LOOPBACK, address or self.address)
        return self.certificates.folder(*roles, name=name or roles[0], hosts=hosts)

    def proving(self, *roles: Role, name: str = "", address: str = "") -> dict[str, str]:
        """The environment of a process with an identity in a secured cluster."""
        identity = self._identity(*roles, name=name, address=address)
        return {**os.environ, DIRECTORY: str(identity)} if identity else dict(os.environ)

    def collect(self) -> None:
        command = [*node_command(self.zk, "collector"), "--data", str(self.folder / "collector")]
        roles: Sequence[Role] = ("node", "discovery", "collector", "executor")
        self._spawn("collector", [*command, "--role", "collect"], *roles)

    def start_gateway(self) -> int:
        """Start a node that is a gateway alone; return the gateway's port."""
        command = [*node_command(self.zk, "gateway"), "--data", str(self.folder / "gateway")]
        command += ["--insecure", "--host", self.address, "--port", str(GATEWAY_PORT)]
        self._spawn("gateway", [*command, "--role", "gateway"], "node", "collector")
        return GATEWAY_PORT + 3

    def _spawn(self, name: str, command: list[str], *roles: Role) -> None:
        who = self.proving(*roles, name=name)
        self.others.append(start_logged(self.folder / f"{name}.log", *command, env=who))

    def command(self, *arguments: str) -> str:
        command = [sys.executable, "-c", "from cli.main import main; main()", *arguments]
        done = subprocess.run(
            [*command, "--zk", self.zk],
            capture_output=True,
            text=True,
            check=False,
            env=self.proving("admin"),
        )
        return done.stdout + done.stderr

    @property
    def journals(self) -> dict[str, Journal]:
        names = self.store.children(paths.journals())
        found = self.store.read_each([paths.journal(name) for name in names])
        return {n: j.value for n, j in zip(names, found, strict=True) if isinstance(j, Versioned)}

    @property
    def live(self) -> list[str]:
        return self.store.children(paths.live_nodes())

    def lose_zookeeper(self) -> None:
        """Replace ZooKeeper by an empty one."""
        self.zookeeper.kill()
        shutil.rmtree(self.zookeeper.data)
        self.zookeeper.start()
        wait_for(lambda: self.store.connected, "nobody gets a connection to it")

    def acked(self) -> bool:
        """Whether every journal is delivered to its end."""
        told = json.loads(self.command("journal", "list", "--json"))
        return all(row["unacked"] == 0 for row in told) and bool(told)

    def stop(self) -> None:
        with contextlib.ExitStack() as ends:
            ends.callback(ip, "link", "del", self.bridge)
            ends.callback(self.zookeeper.kill)
            ends.callback(self._forwarder.close)
            ends.callback(self.store.close)
            for host in self.all:
                ends.callback(host.stop)
            for process in self.others:
                for pid in [process.pid, *descendants(process.pid)]:
                    _signal(pid, signal.SIGKILL)
                process.wait()


def node_command(zk: str, name: str) -> list[str]:
    code = "from cli.main import main; main()"
    session = ("--session-seconds", str(SESSION_SECONDS))
    return [sys.executable, "-c", code, "node", "run", "--zk", zk, "--name", name, *session]


@contextlib.contextmanager
def running(
    folder: Path, count: int = 3, certificates: Certificates | None = None
) -> Iterator[Hosts]:
    hosts = Hosts(folder, count, certificates)
    try:
        yield hosts
    finally:
        hosts.stop()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
