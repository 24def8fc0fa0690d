"""Senders that other people wrote, against a real worker: each of their messages is one event."""

from __future__ import annotations

import gzip
import logging
import logging.handlers
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

from tests.testkit.ingest_worker import WorkerProcess, flow_text
from tests.testkit.waiting import PATIENCE_SECONDS

RSYSLOG = """
global(workDirectory="{folder}")
module(load="imuxsock" SysSock.Use="off")
input(type="imuxsock" Socket="{folder}/log" CreatePath="on")
action(type="omfwd" Target="127.0.0.1" Port="{port}" Protocol="tcp" TCP_Framing="{framing}"
       template="RSYSLOG_SyslogProtocol23Format")
"""
JAVA_CLIENT = """
import java.net.URI;
import java.net.http.*;

public class Post {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (String type : new String[] {"text/plain", "application/x-ndjson"}) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .header("Content-Type", type)
                .POST(HttpRequest.BodyPublishers.ofString("1\\n2\\n")).build();
            System.out.print(
                client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
        }
    }
}
"""
NODE_CLIENT = """
const url = process.argv[1];
const chunks = new ReadableStream({
  start(c) { c.enqueue(new TextEncoder().encode("1\\n2\\n")); c.close(); },
});
Promise.all([
  fetch(url, {method: "POST", body: "1\\n2\\n"}),
  fetch(url, {method: "POST", body: chunks, duplex: "half"}),
]).then((answers) => console.log(answers.map((a) => a.status).join("")));
"""


def port(worker: WorkerProcess, source: int = 0) -> int:
    return int(worker.task("f")["listen"][source].rpartition(":")[2])


def program(name: str) -> str:
    path = shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def source(kind: str, **options: str) -> str:
    listed = "".join(f", {name}: {value}" for name, value in options.items())
    return f'{kind}: {{listen: "127.0.0.1:0"{listed}}}'


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_messages_of_pythons_syslog_handler_are_events(
    worker: WorkerProcess, kind: socket.SocketKind
) -> None:
    """Over TCP it ends messages with NUL and sends no newline, but those within a message."""
    protocol = "tcp" if kind == socket.SOCK_STREAM else "udp"
    worker.run(flow_text("f", source("syslog", protocol=protocol)))
    handler = logging.handlers.SysLogHandler(("127.0.0.1", port(worker)), socktype=kind)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    count = 3000 if protocol == "tcp" else 300
    for number in range(count):
        logger.warning("record %d of many", number)
    worker.wait_for_events("f", count)  # also while the connection is open
    handler.close()
    assert worker.bodies("f") == [f"<12>record {number} of many" for number in range(count)]
    assert worker.counters("f")["truncated"] == 0


@pytest.mark.parametrize("form", ["--rfc3164", "--rfc5424"])
@pytest.mark.parametrize("transport", ["--tcp", "--tcp --octet-count", "--udp"])
def test_messages_of_util_linux_logger_are_events(
    worker: WorkerProcess, form: str, transport: str
) -> None:
    logger = program("logger")
    protocol = "udp" if transport == "--udp" else "tcp"
    worker.run(flow_text("f", source("syslog", protocol=protocol)))
    subprocess.run(
        [logger, form, *transport.split(), "-n", "127.0.0.1", "-P", str(port(worker)), "-t", "me"],
        input=b"one\ntwo 2\n3 three\n",
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    worker.wait_for_events("f", 3)
    bodies = worker.bodies("f")
    assert [body.partition("<13>")[0] for body in bodies] == ["", "", ""]
    assert [body.rpartition(" ")[2] for body in bodies] == ["one", "2", "three"]
    assert worker.counters("f")["malformed"] == 0


@pytest.mark.parametrize("framing", ["traditional", "octet-counted"])
def test_messages_of_rsyslog_are_events(
    worker: WorkerProcess, tmp_path: Path, framing: str
) -> None:
    """Its octet counts include a newline at the end."""
    rsyslogd, logger = program("rsyslogd"), program("logger")
    worker.run(flow_text("f", source("syslog")))
    folder = tmp_path / "rsyslog"
    folder.mkdir()
    configuration = folder / "rsyslog.conf"
    configuration.write_text(RSYSLOG.format(folder=folder, port=port(worker), framing=framing))
    command = [rsyslogd, "-n", "-f", str(configuration), "-i", str(folder / "pid")]
    with subprocess.Popen(command) as relay:
        try:
            worker.eventually((folder / "log").exists)
            for text in ("one", "two 2", "3 three"):
                subprocess.run(
                    [logger, "-u", str(folder / "log"), "-t", "me", text],
                    check=True,
                    timeout=PATIENCE_SECONDS,
                )
            worker.wait_for_events("f", 3)
        finally:
            relay.terminate()
    bodies = [body for body in worker.bodies("f") if " me " in body]
    assert [body.rpartition(" ")[2] for body in bodies] == ["one", "2", "three"]
    assert all(body.startswith("<13>1 ") for body in bodies)
    assert worker.counters("f")["malformed"] == 0


def test_requests_of_curl_are_events(worker: WorkerProcess, tmp_path: Path) -> None:
    """Also a body that is large enough for it to ask first (Expect: 100-continue)."""
    curl = program("curl")
    worker.run(flow_text("f", source("http")))
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(b"%d " % n + b"x" * 90 + b"\n" for n in range(20_000)))
    packed = tmp_path / "lines.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    place = f"http://127.0.0.1:{port(worker)}/app"
    for path, headers in ((lines, []), (packed, ["-H", "Content-Encoding: gzip"])):
        said = subprocess.run(
            [curl, "-sS", "-w", "%{http_code}", "--data-binary", f"@{path}", *headers, place],
            check=True,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
        )
        assert said.stdout == b"{}\n200"
    bodies = worker.bodies("f")
    assert len(bodies) == 40_000
    assert bodies[:20_000] == bodies[20_000:] == lines.read_text().splitlines()


def answered(*command: str) -> str:
    said = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    return said.stdout.decode().strip()


def test_http_clients_that_offer_http2_lose_no_body(worker: WorkerProcess, tmp_path: Path) -> None:
    """Java's HttpClient offers it by default, in the first request of each connection."""
    java, curl = program("java"), program("curl")
    worker.run(flow_text("f", source("http")))
    place = f"http://127.0.0.1:{port(worker)}/app"
    post = tmp_path / "Post.java"
    post.write_text(JAVA_CLIENT)
    assert answered(java, "-Xmx128m", "-XX:+UseSerialGC", str(post), place) == "200200"
    assert worker.bodies("f") == ["1", "2"] * 2
    asked = [curl, "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--http2"]
    assert answered(*asked, "--data-binary", "1\n2\n", place) == "200"
    assert answered(*asked, "--data-binary", "1\n2\n", "-H", "Expect: 100-continue", place) == "200"
    chunked = ["-H", "Transfer-Encoding: chunked", "--data-binary", "1\n2\n"]
    assert answered(*asked, *chunked, place) == "200"
    assert worker.bodies("f") == ["1", "2"] * 5


def test_requests_of_nodejs_fetch_are_events(worker: WorkerProcess) -> None:
    """Once with its length, once in chunks."""
    node = program("node")
    worker.run(flow_text("f", source("http")))
    place = f"http://127.0.0.1:{port(worker)}/app"
    assert answered(node, "-e", NODE_CLIENT, place) == "200200"
    assert worker.bodies("f") == ["1", "2"] * 2


def test_bytes_that_are_not_kept_are_counted(worker: WorkerProcess) -> None:
    """To the byte: the rest of over-long messages, and the unfinished message of a broken
    connection."""
    worker.run(flow_text("f", source("syslog", max_line_bytes="1000")))
    with worker.connect("f") as sender:
        sender.sendall(b"<13>" + b"x" * 200_000)
        time.sleep(0.1)
        sender.sendall(b"y" * 96 + b"\0<13>next\n" + b"1580515200 epoch line\n")
    with worker.connect("f") as counted:
        counted.sendall(b"5000 <13>" + b"z" * 4996 + b"10 <13>whole\n")
    worker.wait_for_events("f", 5)
    with worker.connect("f") as broken:
        broken.sendall(b"<13>first\n<13>never ended")
        worker.wait_for_events("f", 6)
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    expected = 200_100 - 1000 + 4000 + len("<13>never ended")
    worker.eventually(lambda: worker.counters("f")["discarded_bytes"] == expected)
    assert sorted(map(len, worker.bodies("f"))) == [8, 9, 9, 21, 1000, 1000]
    assert worker.counters("f")["truncated"] == 2
