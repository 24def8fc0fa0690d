"""Every source end to end in a real worker: sent events are in the journal with their
attributes."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.testkit.daemons import is_alive
from tests.testkit.ingest_worker import WorkerProcess, flow_text
from tests.testkit.waiting import wait_for


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerProcess]:
    allowed = tmp_path / "node.yaml"
    allowed.write_text("commands: [/bin/sh *, /no/such/program]\n")
    monkeypatch.setenv("SECRET", "x")
    worker = WorkerProcess(tmp_path / "node", "--policy", str(allowed))
    yield worker
    if worker.process.poll() is None:
        worker.kill()


def source(name: str, **options: Any) -> str:
    return f"{name}: {json.dumps(options)}"


def listening(name: str, **options: Any) -> str:
    return source(name, listen="127.0.0.1:0", **options)


def place(worker: WorkerProcess, flow: str, number: int = 0) -> tuple[str, int]:
    host, _, port = worker.task(flow)["listen"][number].rpartition(":")
    return host, int(port)


def attrs(event: dict[str, Any]) -> dict[str, str]:
    return dict(event["attrs"])


def prefixed(*messages: bytes) -> bytes:
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


def test_tcp_source_reads_lines_and_prefixed_messages(worker: WorkerProcess) -> None:
    worker.run(flow_text("f", listening("tcp"), listening("tcp", framing="length-prefixed")))
    with worker.connect("f") as lines, worker.connect("f", 1) as binary:
        lines.sendall(b"one\r\n\ntwo\n3 last")
        binary.sendall(prefixed(b"a\nb\r\0", b"", b"\xff" * 70_000) + prefixed(b"cut")[:-1])
    events = worker.wait_for_events("f", 6)
    assert sorted(event["body"] for event in events) == sorted(
        [b"one", b"two", b"3 last", b"a\nb\r\0", b"\xff" * 70_000, b"cu"]
    )
    assert {attrs(event)["source"] for event in events} == {"tcp"}
    assert {e["body"] for e in events if attrs(e).get("truncated")} == {b"cu"}


def test_sender_with_invalid_lengths_is_disconnected(worker: WorkerProcess) -> None:
    worker.run(flow_text("f", listening("tcp", framing="length-prefixed")))
    with worker.connect("f") as good, worker.connect("f") as bad:
        bad.sendall(prefixed(b"fine") + b"GET / HTTP/1.1\r\n\r\n")
        bad.settimeout(60)
        with pytest.raises(OSError, match="reset"):
            assert bad.recv(1) == b""
            bad.sendall(b"x")
            raise ConnectionResetError("reset: closed in order")
        good.sendall(prefixed(b"good"))
        assert {e["body"] for e in worker.wait_for_events("f", 2)} == {b"fine", b"good"}


def test_udp_source_reads_datagrams_and_messages_within_them(worker: WorkerProcess) -> None:
    framings = ("datagram", "newline", "length-prefixed", "octet-counted")
    worker.run(flow_text("f", *(listening("udp", framing=framing) for framing in framings)))
    sent = {
        "datagram": [b"a\nb\n", b"", b"c"],
        "newline": [b"l1\nl2\r\n\nl3"],
        "length-prefixed": [prefixed(b"p\n1", b"p2"), b"GET / "],
        "octet-counted": [b"3 o\n12 o2"],
    }
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for number, datagrams in enumerate(sent.values()):
            for datagram in datagrams:
                sender.sendto(datagram, place(worker, "f", number))
        peer = f"127.0.0.1:{sender.getsockname()[1]}"
    events = worker.wait_for_events("f", 9)
    assert {attrs(event)["peer"] for event in events} == {peer}
    assert sorted(event["body"] for event in events) == sorted(
        [b"a\nb", b"c", b"l1", b"l2", b"l3", b"p\n1", b"p2", b"o\n1", b"o2"]
    )


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed server, and an authority with one client."""
    folder = tmp_path_factory.mktemp("tls")
    own = "req -x509 -newkey rsa:2048 -nodes -days 2 -addext subjectAltName=IP:127.0.0.1"
    for name in ("server", "ca"):
        _openssl(folder, f"{own} -subj /CN={name} -keyout {name}.key -out {name}.pem")
    _openssl(folder, "req -newkey rsa:2048 -nodes -subj /CN=me -keyout me.key -out me.csr")
    _openssl(folder, "x509 -req -in me.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out me.pem")
    _openssl(folder, "rsa -aes256 -passout pass:x -in server.key -out locked.key")
    return folder


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)


def secured(certificates: Path, **more: str) -> dict[str, str]:
    return {
        "certificate": str(certificates / "server.pem"),
        "key": str(certificates / "server.key"),
        **more,
    }


@pytest.mark.parametrize("name", ["syslog", "tcp", "http"])
def test_tls_source_serves_its_clients_and_turns_others_away(
    worker: WorkerProcess, certificates: Path, name: str
) -> None:
    """Plain text and unknown clients are turned away; good senders are served meanwhile."""
    with_clients = secured(certificates, client_ca=str(certificates / "ca.pem"))
    worker.run(
        flow_text(
            "f", listening(name, tls=secured(certificates)), listening(name, tls=with_clients)
        )
    )
    anyone = ssl.create_default_context(cafile=str(certificates / "server.pem"))
    member = ssl.create_default_context(cafile=str(certificates / "server.pem"))
    member.load_cert_chain(certificates / "me.pem", certificates / "me.key")
    with worker.connect("f") as plain, worker.connect("f") as idle:
        plain.sendall(b"x" * 100 + b"\n")
        for number, context in ((0, anyone), (1, member)):
            _send(name, place(worker, "f", number), context, f"<13>to {number}")
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
            _send(name, place(worker, "f", 1), anyone, "<13>from a stranger")
        idle.sendall(b"")
    assert sorted(e["body"] for e in worker.wait_for_events("f", 2)) == [b"<13>to 0", b"<13>to 1"]


def _send(name: str, place: tuple[str, int], context: ssl.SSLContext, line: str) -> None:
    if name == "http":
        client = http.client.HTTPSConnection(*place, context=context, timeout=60)
        client.request("POST", "/", line)
        assert client.getresponse().status == 200
        return
    with context.wrap_socket(
        socket.create_connection(place, timeout=60), server_hostname=place[0]
    ) as secured:
        secured.sendall(line.encode() + b"\n")
        secured.unwrap()  # raises when the server refuses the client


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"certificate": "gone.pem"}, "cannot read {}/gone.pem: No such file or directory"),
        ({"certificate": "me.csr"}, "not a PEM certificate and its key"),
        ({"key": "me.key"}, "key values mismatch"),
        ({"key": "locked.key"}, "not a PEM certificate and its key without a password"),
        ({"client_ca": "me.key"}, "{}/me.key contains no PEM certificates"),
    ],
)
def test_invalid_tls_files_fail_that_task_alone(
    worker: WorkerProcess, certificates: Path, files: dict[str, str], said: str
) -> None:
    tls = secured(certificates, **{name: str(certificates / f) for name, f in files.items()})
    worker.configure(
        flow_text("bad", listening("tcp", tls=tls)), flow_text("good", listening("tcp"))
    )
    worker.eventually(lambda: worker.task("bad").get("state") == "failed")
    worker.eventually(lambda: worker.is_running("good"))
    assert said.format(certificates) in worker.task("bad")["error"]


def test_http_answers_when_its_events_are_durable(worker: WorkerProcess) -> None:
    worker.run(flow_text("f", listening("http", max_body_bytes="64 KiB")))
    client = http.client.HTTPConnection(*place(worker, "f"), timeout=60)

    def post(body: bytes, kind: str = "text/plain", **more: str) -> tuple[int, dict[str, str]]:
        client.request("POST", "/in/app", body, {"content-type": kind, **more})
        answer = client.getresponse()
        said: dict[str, str] = json.loads(answer.read())
        return answer.status, said

    def durable() -> int:
        return sum(position.safe for position in worker.journals("f").values())

    ndjson, total = "application/x-ndjson", 0
    for count, body, kind, encoding in (
        (3, b"a\n\nb\r\nc", "text/plain", ""),
        (2, b'{"a": 1}\n{"b":\t2}\n', ndjson, "identity"),
        (2, b'[{"a": 1} , [2,\n3]]', "application/json; charset=utf-8", ""),
        (1, b'{"a": 1}', "application/json", ""),
        (2, gzip.compress(b"zip\nped"), "", "gzip"),
        (1, pa.compress(b"z", codec="zstd", asbytes=True), "", "zstd"),
        (0, b"", "", ""),
    ):
        assert post(body, kind, **{"content-encoding": encoding}) == (200, {})
        total += count
        assert durable() == total
    bomb = gzip.compress(bytes(1 << 28))
    for status, said, answer in (
        (400, "line 2 is not JSON", post(b'{"a": 1}\n{"b"\n', ndjson)),
        (400, "the body is not a JSON array", post(b"[1, 2", "application/json")),
        (400, "the body is not gzip", post(b"plain", **{"content-encoding": "gzip"})),
        (413, "larger than 65536 bytes", post(bytes(65_537))),
        (413, "larger than 65536 bytes", post(bomb, **{"content-encoding": "gzip"})),
        (415, "use gzip or zstd", post(b"x", **{"content-encoding": "br"})),
    ):
        assert answer[0] == status
        assert said in answer[1]["error"]
    events = worker.events("f")
    assert durable() == len(events) == total
    assert {attrs(event)["path"] for event in events} == {"/in/app"}
    assert attrs(events[3]) == {
        "source": "http",
        "peer": attrs(events[0])["peer"],
        "path": "/in/app",
        "content_type": ndjson,
    }
    assert [e["body"] for e in events[5:8]] == [b'{"a": 1}', b"[2,\n3]", b'{"a": 1}']
    client.request("GET", "/health")
    health = client.getresponse()
    assert (health.status, health.read()) == (200, b"{}\n")


def test_http_200_is_in_the_journal_after_kill_9(worker: WorkerProcess) -> None:
    flow = flow_text("f", listening("http"))
    accepted: list[str] = []
    for kill in range(3):
        worker.run(flow)
        client = http.client.HTTPConnection(*place(worker, "f"), timeout=60)
        worker_pid, until = worker.process.pid, time.monotonic() + 0.3
        try:
            for number in range(10_000):
                if time.monotonic() > until:
                    os.kill(worker_pid, signal.SIGKILL)
                body = f"{kill}-{number}"
                client.request("POST", "/", body)
                if client.getresponse().read() == b"{}\n":
                    accepted.append(body)
        except (OSError, http.client.HTTPException):
            worker.ended()
        worker.start()
    found = set(worker.bodies("f"))
    assert len(accepted) > 30
    assert set(accepted) <= found


def listens(worker: WorkerProcess, flow: str) -> bool:
    return bool(worker.task(flow).get("listen"))


def printing(script: str, **options: Any) -> str:
    return source("exec", command=["/bin/sh", "-c", script], **options)


def test_exec_takes_lines_and_reports_the_exit_of_the_command(worker: WorkerProcess) -> None:
    worker.run(
        flow_text(
            "f",
            printing("echo one; printf 'two\\n\\nlast'", mode="once"),
            printing("date +%s%N", mode="periodic", every_seconds=0.2),
            printing("env | grep -c SECRET; pwd", mode="once"),
            printing("echo again; echo oh no >&2; exit 3"),
            source("exec", command=["/no/such/program"]),
        )
    )
    worker.eventually(lambda: worker.bodies("f").count("again") >= 2)
    worker.eventually(lambda: "/no/such/program" in (worker.task("f")["error"] or ""))
    assert {"0", "/"} <= set(worker.bodies("f"))
    said = worker.task("f")["error"]
    assert "/bin/sh ended with status 3: oh no" in said
    assert "/no/such/program ended with status 127: No such file or directory" in said
    events = worker.events("f")
    assert [body for body in worker.bodies("f") if body in ("one", "two", "", "last")] == [
        "one", "two", "", "last",
    ]  # fmt: skip
    assert attrs(events[0]) == {"source": "exec", "command": "/bin/sh"}
    times = [int(body) for body in worker.bodies("f") if body.isdigit()]
    assert len(times) > 2
    worker.stop()
    worker.start()
    worker.run(flow_text("f", printing("echo one; printf 'two\\n\\nlast'", mode="once")))
    time.sleep(0.3)
    assert worker.bodies("f").count("one") == 1


@pytest.mark.parametrize("end", ["source", "stop", "kill -9"])
def test_command_and_its_children_end_with_their_source(worker: WorkerProcess, end: str) -> None:
    """Also those that do not listen to SIGTERM."""
    stubborn = "trap '' TERM; (trap '' TERM; echo $$; sleep 300 & echo $!; wait) & echo $!; wait"
    stays = listening("tcp")
    worker.run(flow_text("f", stays, printing(stubborn)))
    pids = [int(event["body"]) for event in worker.wait_for_events("f", 3)]
    assert all(map(is_alive, pids))
    if end == "source":
        worker.run(flow_text("f", stays), revision=2)
    elif end == "stop":
        worker.stop()
    else:
        worker.kill()
    wait_for(lambda: not any(map(is_alive, pids)))


def test_generated_numbers_are_dense_over_kill_9(worker: WorkerProcess) -> None:
    flow = flow_text(
        "f",
        source("generate", events_per_second=10_000, bytes=100),
        source("generate", events_per_second=0, bytes=64, count=60_000, seed=7),
    )
    for _ in range(4):
        worker.run(flow)
        time.sleep(0.3)
        worker.kill()
        worker.start()
    worker.run(flow)
    worker.wait_for_events("f", 65_000)
    bodies = worker.bodies("f")
    for seed, size in (("0", 100), ("7", 64)):
        own = [body for body in bodies if body.startswith(f"{seed} ")]
        assert [int(body.split()[1]) for body in own] == list(range(len(own)))
        assert {len(body) for body in own} == {size}
        assert seed == "0" or len(own) == 60_000


def test_source_forbidden_by_the_policy_file_fails_on_this_node_alone(tmp_path: Path) -> None:
    """A flow's other sources run, and so do other flows; a symlink made later is no way out."""
    logs, secret = tmp_path / "logs", tmp_path / "secret"
    logs.mkdir()
    secret.write_text("secret\n")
    allowed = tmp_path / "node.yaml"
    allowed.write_text(f"sources: [tcp, tail, exec]\npaths: [{logs}]\ncommands: [/bin/date *]\n")
    worker = WorkerProcess(tmp_path / "node", "--policy", str(allowed))
    try:
        refused = {
            "a": source("generate"),
            "b": source("tail", paths=[str(secret)]),
            "c": source("exec", command=["/bin/sh", "-c", "date"]),
        }
        good = flow_text("good", listening("tcp"), source("tail", paths=[f"{logs}/*"]))
        flows = [flow_text(name, text, listening("tcp")) for name, text in refused.items()]
        worker.configure(good, flow_text("d", source("exec", command=["/bin/date"])), *flows)
        for name, said in (
            ("a", "this node's policy file does not allow the source generate"),
            ("b", f"this node's policy file does not allow to read {secret}"),
            ("c", "this node's policy file does not allow the command /bin/sh -c date"),
        ):
            worker.eventually(partial(listens, worker, name))
            assert worker.task(name)["state"] == "failed"
            assert worker.task(name)["error"] == said
        worker.eventually(lambda: worker.is_running("good"))
        (logs / "later").symlink_to(secret)
        (logs / "open").write_text("open\n")
        with worker.connect("good") as connection:
            connection.sendall(b"x\n")
        worker.wait_for_events("good", 2)
        worker.eventually(lambda: worker.task("good")["error"])
        assert worker.task("good")["error"] == (
            f"cannot read {logs}/later: this node's policy file does not allow it"
        )
        assert sorted(worker.bodies("good")) == ["open", "x"]
        worker.wait_for_events("d", 1)
    finally:
        worker.kill()


def test_events_of_every_source_have_the_documented_attributes(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    """And the microsecond in which it received them."""
    log = tmp_path / "app.log"
    log.write_text("x\n")
    sources = {
        "syslog": listening("syslog"),
        "tcp": listening("tcp"),
        "udp": listening("udp"),
        "http": listening("http"),
        "tail": source("tail", paths=[str(log)]),
        "exec": printing("echo x", mode="once"),
        "generate": source("generate", count=1),
    }
    pinned = [point.name for point in entry_points(group="flumeng.sources")]
    assert sorted(sources) == sorted(pinned)
    before_us = time.time_ns() // 1000
    worker.run(flow_text("f", *sources.values()))
    for number in (0, 1):
        with worker.connect("f", number) as connection:
            connection.sendall(b"x\n")
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", place(worker, "f", 2))
    client = http.client.HTTPConnection(*place(worker, "f", 3), timeout=60)
    client.request("POST", "/", b"x", {"content-type": "text/plain"})
    client.getresponse().read()
    events = worker.wait_for_events("f", len(sources))
    after_us = time.time_ns() // 1000
    page = (Path(__file__).parents[2] / "docs" / "reference" / "flow.md").read_text()
    for event in events:
        found = attrs(event)
        own = event["host"] == socket.gethostname()
        host = "this host's name" if own else "the peer's address"
        listed = ", ".join(f"`{name}`" for name in found)
        assert f"| `{found['source']}` | {host} | {listed} |" in page
        assert own or event["host"] == "127.0.0.1"
        assert before_us <= round(event["ts"].timestamp() * 1e6) <= after_us
    assert {attrs(event)["source"] for event in events} == set(sources)
    assert [event["seq"] for event in events] == list(range(len(sources)))


def test_line_of_a_gigabyte_and_bombs_cost_little_memory(worker: WorkerProcess) -> None:
    """Good senders are served meanwhile."""

    def rss_mib() -> float:
        lines = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    worker.run(flow_text("f", listening("tcp"), listening("http")))
    http_place = place(worker, "f", 1)
    good = http.client.HTTPConnection(*http_place, timeout=60)
    bad = http.client.HTTPConnection(*http_place, timeout=60)
    bombs = {"gzip": gzip.compress(bytes(1 << 28), 1)}
    bombs["zstd"] = pa.compress(bytes(1 << 30), codec="zstd", asbytes=True)
    good.request("POST", "/", b"first")
    assert good.getresponse().read() == b"{}\n"
    before, most, served = rss_mib(), 0.0, 0
    part = bytes(1 << 22)
    with worker.connect("f") as endless:
        for sent in range(256):
            endless.sendall(part)
            if sent % 32 == 0:
                for encoding, bomb in bombs.items():
                    bad.request("POST", "/", bomb, {"content-encoding": encoding})
                    answer = bad.getresponse()
                    assert (answer.status, answer.read()[:9]) == (413, b'{"error":')
                good.request("POST", "/", b"good")
                assert good.getresponse().read() == b"{}\n"
                served += 1
                most = max(most, rss_mib())
        endless.sendall(b"\nend\n")
    worker.eventually(lambda: "end" in worker.bodies("f"))
    assert most - before < 48
    assert worker.bodies("f").count("good") == served == 8
    assert sorted({len(event["body"]) for event in worker.events("f")}) == [3, 4, 5, 1 << 20]
