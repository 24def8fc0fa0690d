"""Events to the next hop over real sockets: an event counts as written once a server has read
it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flumeng.agent.standalone.embedded import free_port
from flumeng.config.client_tls import ClientTls
from flumeng.connectors.forward import sink as forward
from flumeng.connectors.forward.options import ForwardSyslog, ForwardTcp
from flumeng.connectors.forward.sink import Forward
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.sink_examples import example, first_sink
from tests.testkit.ingest_worker import WorkerProcess, flow_text
from tests.testkit.waiting import retry, wait_for

BODIES = [b"<13>one", b"<14>t\nwo", b"<15>" + b"x" * 3_000_000, "<16>grün".encode()]


@pytest.fixture(autouse=True)
def nothing_has_failed() -> None:
    forward._failed_at.clear()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    for name in ("server", "client"):
        command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -addext "
        command += f"subjectAltName=IP:127.0.0.1 -keyout {name}.key -out {name}.pem"
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder


class Server:
    """Handles connections one after the other with ``serve``; ``received`` has the bytes of
    each."""

    def __init__(self, serve: Callable[[socket.socket], None] | None = None) -> None:
        self.received: list[bytes] = []
        self._serve = serve or self._read
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    self._serve(connection)

    def _read(self, connection: socket.socket) -> None:
        self.received.append(b"".join(iter(lambda: connection.recv(65536), b"")))

    def close(self) -> None:
        self._listener.close()


def events(*bodies: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})


def send(options: ForwardTcp | ForwardSyslog, *batches: pa.RecordBatch) -> int:
    return sum(row["events"] for out in Forward(options)(iter(batches)) for row in out.to_pylist())


def lines(*bodies: bytes) -> bytes:
    return b"".join(body + b"\n" for body in bodies)


def test_lines_arrive_before_the_split_counts_as_written() -> None:
    with closing(Server()) as server:
        options = ForwardTcp((server.address,))
        for number in range(20):
            assert send(options, events(b"a%d" % number), events(b"b")) == 2
            assert server.received[-1] == lines(b"a%d" % number, b"b")


def test_event_is_sent_as_json() -> None:
    with closing(Server()) as server:
        send(ForwardTcp((server.address,), message="json"), events(b"a\nb"))
        assert json.loads(server.received[0]) == {"body": "a\nb"}


def test_empty_split_needs_no_server() -> None:
    assert send(ForwardTcp(("127.0.0.1:1",))) == 0


def test_next_target_is_used_while_the_first_is_down() -> None:
    gone = f"127.0.0.1:{free_port()}"
    with closing(Server()) as server:
        options = ForwardTcp((gone, server.address))
        assert send(options, events(b"x")) == 1
        assert forward._failed_at.keys() == {gone}
    with pytest.raises(UnavailableError, match=rf"{gone} \(connect\): Connection refused"):
        send(ForwardTcp((gone,)), events(b"x"))


def test_frozen_target_costs_one_timeout_and_then_the_next_target_is_used() -> None:
    """Its kernel takes connections and bytes for it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as frozen, closing(Server()) as server:
        address = f"127.0.0.1:{frozen.getsockname()[1]}"
        options = ForwardTcp((address, server.address), timeout_seconds=1)
        for content in (b"small", b"x" * 50_000_000):
            forward._failed_at.clear()
            began = time.monotonic()
            with pytest.raises(UnavailableError, match="timed out"):
                send(options, events(content))
            assert time.monotonic() - began < 20
        assert send(options, events(b"x")) == 1
        assert server.received == [b"x\n"]
        assert send(ForwardTcp((address,), wait_for_close=False), events(b"small")) == 1


def closes_at_once(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)
    time.sleep(0.5)


def resets(connection: socket.socket) -> None:
    connection.recv(10)


def slowly(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        time.sleep(0.2)


@pytest.mark.parametrize("serve", [closes_at_once, resets])
def test_server_that_closes_in_the_middle_leaves_the_split_unwritten(
    serve: Callable[[socket.socket], None],
) -> None:
    with closing(Server(serve)) as server:
        stage = Forward(ForwardTcp((server.address,)))
        with pytest.raises(UnavailableError, match=r"closed the connection|reset|Broken pipe"):
            list(stage(slowly(*[events(b"x" * 1000)] * 3)))


def listening(worker: WorkerProcess, name: str, **options: Any) -> str:
    """The address of a listening flow with that source."""
    flow = f"f{free_port()}"
    worker.run(flow_text(flow, f"{name}: {json.dumps({'listen': '127.0.0.1:0', **options})}"))
    address: str = worker.task(flow)["listen"][0]
    return f"{flow}/{address}"


def bodies(worker: WorkerProcess, flow: str, count: int) -> list[bytes]:
    return sorted(event["body"] for event in worker.wait_for_events(flow, count))


def test_syslog_source_receives_every_byte_over_tls(
    worker: WorkerProcess, certificates: Path
) -> None:
    pem = {name: str(certificates / f"{name}.pem") for name in ("server", "client")}
    keys = {name: str(certificates / f"{name}.key") for name in ("server", "client")}
    source = {"certificate": pem["server"], "key": keys["server"], "client_ca": pem["client"]}
    flow, _, address = listening(worker, "syslog", tls=source, max_line_bytes=2**23).partition("/")
    tls = ClientTls(ca=pem["server"], certificate=pem["client"], key=keys["client"])
    assert send(ForwardSyslog((address,), tls=tls, timeout_seconds=10), events(*BODIES)) == 4
    assert bodies(worker, flow, 4) == sorted(BODIES)
    stranger = ForwardSyslog((address,), tls=ClientTls(), timeout_seconds=5)
    with pytest.raises(UnavailableError, match=r"certificate verify failed"):
        send(stranger, events(b"x"))
    nameless = ForwardSyslog((address,), tls=ClientTls(ca=pem["server"]), timeout_seconds=5)
    with pytest.raises(UnavailableError):
        send(nameless, events(b"x"))
    with pytest.raises(UserError, match="No such file"):
        send(ForwardSyslog((address,), tls=ClientTls(ca="/absent.pem")), events(b"x"))


def test_the_example_of_the_page_runs(worker: WorkerProcess, certificates: Path) -> None:
    files = {name: str(certificates / f"server.{name}") for name in ("pem", "key")}
    tls = {"certificate": files["pem"], "key": files["key"]}
    flow, _, address = listening(worker, "syslog", tls=tls).partition("/")
    changes = {
        "logs-1.example:6514": f"127.0.0.1:{free_port()}",
        "logs-2.example:6514": address,
        "/etc/flumeng/tls/ca.pem": files["pem"],
    }
    assert send(first_sink(example("- syslog:\n      targets", changes)), events(b"one")) == 1
    (body,) = bodies(worker, flow, 1)
    assert re.fullmatch(rb"<\d+>1 .* one", body)


def test_tcp_source_receives_every_byte_with_length_prefixes(worker: WorkerProcess) -> None:
    options = {"framing": "length-prefixed", "max_line_bytes": 2**23}
    flow, _, address = listening(worker, "tcp", **options).partition("/")
    send(ForwardTcp((address,), framing="length-prefixed"), events(*BODIES))
    assert bodies(worker, flow, 4) == sorted(BODIES)


def test_resets_of_a_server_lose_nothing() -> None:
    """Splits are repeated until they are written, as the loop does."""
    chance = iter(range(1000))

    def fickle(connection: socket.socket) -> None:
        got = b""
        while piece := connection.recv(4096):
            got += piece
            if next(chance) % 7 == 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
        servers[0].received.append(got)

    servers = [Server()]
    servers[0]._serve = fickle
    with closing(servers[0]) as server:
        options = ForwardTcp((server.address,), timeout_seconds=5)
        written = []
        for number in range(30):
            content = [b"%d.%d" % (number, each) for each in range(800)]
            for _ in range(50):
                try:
                    written.append(send(options, events(*content[:400]), events(*content[400:])))
                    break
                except UnavailableError:
                    continue
        assert written == [800] * 30
        found = b"".join(server.received).split()
        assert set(found) == {b"%d.%d" % (n, each) for n in range(30) for each in range(800)}


def rsyslogd() -> str | None:
    return shutil.which("rsyslogd") or shutil.which("rsyslogd", path="/usr/sbin")


@pytest.mark.skipif(rsyslogd() is None, reason="rsyslogd is not installed")
def test_rsyslog_takes_messages_of_both_framings(tmp_path: Path) -> None:
    program, port = rsyslogd(), free_port()
    assert program is not None
    output, configuration = tmp_path / "out", tmp_path / "rsyslog.conf"
    configuration.write_text(
        f"""
module(load="imtcp")
template(name="raw" type="string"
    string="%pri% %timereported:::date-rfc3339% %hostname% %app-name%%msg%\\n")
input(type="imtcp" port="{port}" address="127.0.0.1")
action(type="omfile" file="{output}" template="raw" flushOnTXEnd="on")
"""
    )
    process = subprocess.Popen(
        [program, "-n", "-f", str(configuration), "-i", str(tmp_path / "pid")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        rows = pa.RecordBatch.from_pydict(
            {
                "severity": [3],
                "facility": [4],
                "ts": pa.array([0], pa.timestamp("us", "UTC")),
                "host": ["web1"],
                "app": ["nginx"],
                "message": ["hello"],
            }
        )
        for framing in ("octet-counted", "newline"):
            options = ForwardSyslog((f"127.0.0.1:{port}",), "rfc5424", framing, timeout_seconds=5)
            retry(partial(send, options, rows), UnavailableError)
        wait_for(lambda: output.exists() and len(output.read_text().splitlines()) >= 2)
        line = "35 1970-01-01T00:00:00.000000Z web1 nginxhello"
        assert {one.replace(" hello", "hello") for one in output.read_text().splitlines()} == {line}
    finally:
        process.kill()
        process.wait()


def test_server_that_breaks_off_tls_is_no_success(certificates: Path) -> None:
    """It closes without reading the sent lines."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(10)

    with closing(Server(serve)) as server:
        tls = ClientTls(ca=str(certificates / "server.pem"))
        stage = Forward(ForwardTcp((server.address,), tls=tls, timeout_seconds=5))
        with pytest.raises(UnavailableError):
            list(stage(slowly(*[events(b"x" * 100_000)] * 3)))
