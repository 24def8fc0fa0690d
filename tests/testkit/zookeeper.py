"""A real ensemble of ZooKeeper servers to kill, freeze and wipe, and a network to spoil."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flumeng.agent.standalone import embedded
from flumeng.platform.security.credentials import Keystore
from tests.testkit.daemons import start_logged
from tests.testkit.waiting import wait_for

HOST = "127.0.0.1"
START_SECONDS = 60.0
UNIMPLEMENTED = -6
REPLY_HEADER = struct.Struct(">iiqi")  # length, xid, zxid, error


def ask_server(port: int, word: bytes, identity: Path | None = None) -> str:
    """The server's answer to a four-letter word, over TLS with the certificate in ``identity``.

    Raises OSError.
    """
    with socket.create_connection((HOST, port), timeout=1) as connection:
        asked = connection
        if identity is not None:
            context = ssl.create_default_context(cafile=identity / "ca.pem")
            context.check_hostname = False
            context.load_cert_chain(identity / "zookeeper.pem", identity / "zookeeper.key")
            asked = context.wrap_socket(connection)
        asked.sendall(word)
        return b"".join(iter(lambda: asked.recv(4096), b"")).decode()


class Server:
    """One server of an ensemble, on the same ports for its whole life."""

    def __init__(
        self, data: Path, number: int, ensemble: list[str], identity: Path | None = None
    ) -> None:
        self.number = number
        self._identity = identity
        self.port = embedded.free_port()
        self.address = f"{HOST}:{self.port}"
        self._data = data
        self._ensemble = ensemble
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it serves once it has found a majority."""
        self._data.mkdir(parents=True, exist_ok=True)
        command = embedded.server_command(
            self._data,
            self.port,
            server_id=self.number,
            ensemble=self._ensemble,
            keystore=Keystore(self._identity, "zookeeper") if self._identity else None,
        )
        self._process = start_logged(self._data.parent / f"server-{self.number}.log", *command)

    def kill(self) -> None:
        """SIGKILL, frozen or not; the state on disk stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Keep connections open and answer nothing."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def wipe(self) -> None:
        """Remove its data directory; only while it is dead."""
        assert self._process is None, "it runs"
        shutil.rmtree(self._data)

    def mode(self) -> str:
        """``leader`` or ``follower``; empty when it does not serve or does not answer."""
        with contextlib.suppress(OSError):
            for line in ask_server(self.port, b"srvr", self._identity).splitlines():
                if line.startswith("Mode: "):
                    return line.removeprefix("Mode: ")
        return ""

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        os.kill(self._process.pid, number)


class RealEnsemble:
    """Three servers, as in production. Stop it in any case: it leaves no process behind.

    With an ``identity`` their ports and the connections between them use TLS.
    """

    def __init__(self, folder: Path, identity: Path | None = None) -> None:
        self.peers = [f"{HOST}:{embedded.free_port()}:{embedded.free_port()}" for _ in range(3)]
        self.servers = [Server(folder / f"{n}", n, self.peers, identity) for n in (1, 2, 3)]

    @property
    def address(self) -> str:
        """All of them, as a connect string without a chroot."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        self.wait_serving()

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def wait_serving(self, count: int = 3) -> None:
        """Until that many serve, one of them as the leader."""

        def modes() -> list[str]:
            return [mode for server in self.servers if (mode := server.mode())]

        wait_for(
            lambda: len(serving := modes()) >= count and "leader" in serving,
            lambda: f"only {modes()} serve",
            seconds=START_SECONDS,
        )

    @property
    def leader(self) -> Server:
        return next(server for server in self.servers if server.mode() == "leader")

    @property
    def followers(self) -> list[Server]:
        return [server for server in self.servers if server.mode() == "follower"]


class Proxy:
    """A TCP proxy in front of one ZooKeeper server. Its faults may be set from any thread.

    ``refused`` are request types (opcodes) that it answers like a server that does not know them:
    with an error, and the end of the connection.
    """

    def __init__(self, port: int, refused: frozenset[int] = frozenset()) -> None:
        self._port = port
        self._refused = refused
        self._replies_drop = threading.Event()
        self._cut = threading.Event()
        self._delay_seconds = 0.0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def drop_replies(self) -> None:
        """Requests are carried out and their replies dropped. New connections are treated alike."""
        self._replies_drop.set()

    def cut(self) -> None:
        """End all connections, and each new one at once."""
        self._cut.set()
        self._end_all()

    def delay(self, seconds: float) -> None:
        """Let every reply wait."""
        self._delay_seconds = seconds

    def heal(self) -> None:
        """End connections with lost replies; new connections work."""
        spoiled = self._replies_drop.is_set()
        self._replies_drop.clear()
        self._cut.clear()
        self._delay_seconds = 0.0
        if spoiled:
            self._end_all()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _end_all(self) -> None:
        with self._lock:
            ended, self._open = self._open, []
        for connection in ended:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._cut.is_set():
                    client.close()
                    continue
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            server = socket.create_connection((HOST, self._port), timeout=START_SECONDS)
            server.settimeout(None)
            with server:
                with self._lock:
                    if self._cut.is_set():
                        return
                    self._open += [client, server]
                pumps = [(self._forward_requests, client, server), (self._pump, server, client)]
                threads = [
                    threading.Thread(target=_until_closed, args=p, daemon=True) for p in pumps
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        server.sendall(_frame(client))
        while True:
            frame = _frame(client)
            xid, opcode = struct.unpack_from(">ii", frame, 4)
            if opcode in self._refused:
                client.sendall(REPLY_HEADER.pack(REPLY_HEADER.size - 4, xid, 0, UNIMPLEMENTED))
                return
            server.sendall(frame)

    def _pump(self, server: socket.socket, client: socket.socket) -> None:
        while data := server.recv(65536):
            time.sleep(self._delay_seconds)
            if not self._replies_drop.is_set():
                client.sendall(data)


@contextlib.contextmanager
def proxied(ensemble: RealEnsemble) -> Iterator[list[Proxy]]:
    """One proxy for each server."""
    proxies = [Proxy(server.port) for server in ensemble.servers]
    try:
        yield proxies
    finally:
        for proxy in proxies:
            proxy.close()


def _until_closed(
    pump: Callable[[socket.socket, socket.socket], None],
    source: socket.socket,
    target: socket.socket,
) -> None:
    """When one side ends, so does the other."""
    try:
        with contextlib.suppress(OSError):
            pump(source, target)
    finally:
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _frame(source: socket.socket) -> bytes:
    """One request with its length."""
    head = _exactly(source, 4)
    return head + _exactly(source, int.from_bytes(head, "big"))


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            raise ConnectionResetError("closed")
        data += more
    return data
