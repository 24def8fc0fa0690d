"""Authentication of senders at a real worker, with real TLS clients; no sender keeps others out."""

from __future__ import annotations

import json
import resource
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from flumeng.connectors.network.server_tls import canonical
from tests.testkit.ingest_worker import WorkerProcess, flow_text
from tests.unit.connectors.authority import Authority, fingerprint

pytestmark = pytest.mark.long

HALF_OPEN = 10_000
GOOD = 5
SERVED_SECONDS = 30.0
SECRET_SECONDS = 60.0
MOST_RSS_MB = 240


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerProcess]:
    (tmp_path / "secrets").mkdir()
    monkeypatch.setenv("FLUMENG_SECRETS", str(tmp_path / "secrets"))
    put(tmp_path, "shop", "shop-1")
    put(tmp_path, "ann", "secret of ann")
    worker = WorkerProcess(tmp_path / "node")
    yield worker
    if worker.process.poll() is None:
        worker.kill()


def put(folder: Path, name: str, secret: str) -> None:
    path = folder / "secrets" / name
    path.write_text(secret)
    path.chmod(0o600)


def source(name: str, **options: Any) -> str:
    return f"{name}: {json.dumps({'listen': '127.0.0.1:0', **options})}"


def serving(authority: Authority, **more: Any) -> dict[str, Any]:
    certificate, key = authority.issue("server", "127.0.0.1")
    return {"certificate": str(certificate), "key": str(key), **more}


def mutual(authority: Authority, **more: Any) -> dict[str, Any]:
    return serving(authority, client_ca=str(authority.ca), **more)


def port(worker: WorkerProcess) -> int:
    return int(worker.task("f")["listen"][0].rpartition(":")[2])


def connected(
    worker: WorkerProcess, authority: Authority, client: tuple[Path, Path] | None, **more: Any
) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(authority.ca))
    if client is not None:
        context.load_cert_chain(*client)
    plain = socket.create_connection(("127.0.0.1", port(worker)), timeout=60, **more)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def is_let_in(
    worker: WorkerProcess, authority: Authority, client: tuple[Path, Path] | None, line: str
) -> bool:
    """Whether the client can send a line and close properly."""
    try:
        with connected(worker, authority, client) as sender:
            sender.sendall(line.encode() + b"\n")
            sender.unwrap()
    except OSError:
        return False
    return True


def clients(worker: WorkerProcess) -> dict[str, str]:
    """Body -> the client that sent it."""
    return {e["body"].decode(): dict(e["attrs"]).get("client", "") for e in worker.events("f")}


@pytest.mark.parametrize("name", ["syslog", "tcp"])
def test_only_clients_of_the_list_are_admitted(
    worker: WorkerProcess, authority: Authority, name: str
) -> None:
    till = authority.issue("till", "till-1.pos.example")
    pinned = authority.issue("pinned", "pinned.example")
    spiffe = authority.issue("spiffe", "spiffe://example/web")
    others = {
        "unnamed": authority.issue("till-1.pos.example"),
        "below": authority.issue("below", "a.till-1.pos.example"),
        "foreign": Authority(authority.folder / "other", "authority").issue(
            "foreign", "till-1.pos.example"
        ),
        "none": None,
    }
    allowed = ["*.pos.example", fingerprint(pinned[0]), "spiffe://example/web"]
    worker.run(flow_text("f", source(name, tls=mutual(authority, clients=allowed))))
    let_in = [line for line, client in others.items() if is_let_in(worker, authority, client, line)]
    assert let_in == []
    for line, client in (("till", till), ("pinned", pinned), ("spiffe", spiffe)):
        assert is_let_in(worker, authority, client, line)
    worker.wait_for_events("f", 3)
    assert clients(worker) == {
        "till": "till-1.pos.example",
        "pinned": canonical(fingerprint(pinned[0])),
        "spiffe": "spiffe://example/web",
    }
    assert worker.counters("f")["unauthorized"] == len(others)


def test_openssl_client_is_admitted_with_its_certificate_alone(
    worker: WorkerProcess, authority: Authority
) -> None:
    certificate, key = authority.issue("web", "web.example")
    tls = mutual(authority, clients=["web.example"])
    worker.run(flow_text("f", source("syslog", framing="octet-counted", tls=tls)))
    connect = [
        "openssl",
        "s_client",
        "-quiet",
        "-no_ign_eof",
        "-connect",
        f"127.0.0.1:{port(worker)}",
    ]
    trust = ["-CAfile", str(authority.ca), "-verify_return_error"]
    shown = ["-cert", str(certificate), "-key", str(key)]
    for arguments in (shown, []):
        subprocess.run(
            [*connect, *trust, *arguments],
            input=b"19 <13>from openssl 1!",
            capture_output=True,
            timeout=60,
            check=False,
        )
    (event,) = worker.wait_for_events("f", 1)
    assert event["body"] == b"<13>from openssl 1!"
    assert dict(event["attrs"])["client"] == "web.example"
    assert worker.counters("f")["unauthorized"] == 1


def test_sender_that_closes_without_reading_loses_nothing(
    worker: WorkerProcess, authority: Authority
) -> None:
    worker.run(flow_text("f", source("tcp", tls=serving(authority))))
    lines = [b"%d %s" % (number, b"x" * 200) for number in range(20_000)]
    for _ in range(5):
        with connected(worker, authority, None) as sender:
            sender.sendall(b"\n".join(lines) + b"\n")
    events = worker.wait_for_events("f", 5 * len(lines))
    assert Counter(event["body"] for event in events) == dict.fromkeys(lines, 5)


@pytest.mark.parametrize(("version", "served"), [("TLSv1_1", False), ("TLSv1_2", True)])
def test_versions_below_tls_1_2_are_refused(
    worker: WorkerProcess, authority: Authority, version: str, *, served: bool
) -> None:
    worker.run(flow_text("f", source("tcp", tls=serving(authority))))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.ca)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion[version]
    plain = socket.create_connection(("127.0.0.1", port(worker)), timeout=60)
    if served:
        context.wrap_socket(plain, server_hostname="127.0.0.1").close()
    else:
        with pytest.raises(OSError):
            context.wrap_socket(plain, server_hostname="127.0.0.1")
        worker.eventually(lambda: worker.counters("f")["malformed"] == 1)
    plain.close()


def test_revoked_client_is_cut_off_and_the_others_stay(
    worker: WorkerProcess, authority: Authority
) -> None:
    good, bad = authority.issue("good", "good.example"), authority.issue("bad", "bad.example")
    crl = authority.revoke(authority.folder / "crl.pem")
    worker.run(flow_text("f", source("tcp", tls=mutual(authority, client_crl=str(crl)))))
    with connected(worker, authority, good) as kept, connected(worker, authority, bad) as lost:
        lost.sendall(b"before\n")
        worker.wait_for_events("f", 1)
        authority.revoke(crl, bad[0])
        with pytest.raises(OSError):
            assert lost.recv(1) == b""
            raise ConnectionResetError("it was closed in order")
        assert not is_let_in(worker, authority, bad, "after")
        kept.sendall(b"kept\n")
        worker.wait_for_events("f", 2)
        crl.write_text("damaged")
        worker.eventually(lambda: "senders are rejected" in (worker.task("f")["error"] or ""))
        assert not is_let_in(worker, authority, good, "no list")
        kept.sendall(b"kept still\n")
        authority.revoke(crl, bad[0])
        worker.eventually(lambda: worker.task("f")["error"] is None)
        assert is_let_in(worker, authority, good, "good again")
    worker.wait_for_events("f", 4)
    assert clients(worker).keys() == {"before", "kept", "kept still", "good again"}


def test_certificate_is_replaced_without_a_restart(
    worker: WorkerProcess, authority: Authority
) -> None:
    tls = serving(authority)
    worker.run(flow_text("f", source("tcp", tls=tls)))

    def shown() -> bytes | None:
        with connected(worker, authority, None) as sender:
            return sender.getpeercert(binary_form=True)

    first = shown()
    with connected(worker, authority, None) as kept:
        Path(tls["key"]).write_text("damaged")
        worker.eventually(lambda: "not a PEM certificate" in (worker.task("f")["error"] or ""))
        assert shown() == first
        authority.issue("server", "127.0.0.1")
        worker.eventually(lambda: worker.task("f")["error"] is None)
        assert shown() != first
        kept.sendall(b"still there\n")
        worker.wait_for_events("f", 1)


def curl(worker: WorkerProcess, authority: Authority, body: str, *arguments: str) -> str:
    """The HTTP status."""
    where = f"https://127.0.0.1:{port(worker)}/shop"
    command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "60"]
    command += ["--cacert", str(authority.ca), "--data-binary", "@-", *arguments, where]
    done = subprocess.run(command, input=body, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_http_takes_tokens_and_users_and_rejects_others_with_a_reason(
    worker: WorkerProcess, authority: Authority, tmp_path: Path
) -> None:
    auth = {
        "tokens": {"shop": "${secret:shop}"},
        "users": {"ann": "${secret:ann}"},
        "paths": {"/shop": ["shop"], "/": ["ann"]},
    }
    worker.run(flow_text("f", source("http", auth=auth, tls=serving(authority))))
    shop = ("-H", "Authorization: Bearer shop-1")
    assert curl(worker, authority, "1", *shop) == "200"
    assert curl(worker, authority, "2") == "401"
    assert curl(worker, authority, "3", "-H", "Authorization: Bearer shop-2") == "401"
    assert curl(worker, authority, "4", "-u", "ann:secret of ann") == "403"
    assert curl(worker, authority, "x" * 500_000) == "401", "heard by who sends much at once"
    assert curl(worker, authority, "x" * 3_000_000, "-H", "Expect: 100-continue") == "401"
    worker.wait_for_events("f", 1)
    assert clients(worker) == {"1": "shop"}
    counted = worker.counters("f")
    assert (counted["unauthorized"], counted["events"]) == (5, 1)

    put(tmp_path, "shop", "shop-2")
    changed = time.monotonic()
    new = ("-H", "Authorization: Bearer shop-2")
    worker.eventually(lambda: curl(worker, authority, "5", *new) == "200")
    assert time.monotonic() - changed < SECRET_SECONDS
    assert curl(worker, authority, "6", *shop) == "401"


def test_http_takes_client_certificates_by_path(
    worker: WorkerProcess, authority: Authority
) -> None:
    tls = mutual(authority, clients=["shop.example", "till.example"])
    auth = {"paths": {"/shop": ["shop.example"]}}
    worker.run(flow_text("f", source("http", auth=auth, tls=tls)))
    said = {}
    for name in ("shop", "till", "other"):
        certificate, key = authority.issue(name, f"{name}.example")
        shown = ("--cert", str(certificate), "--key", str(key))
        said[name] = curl(worker, authority, name, *shown)
    assert said == {"shop": "200", "till": "403", "other": "403"}
    worker.wait_for_events("f", 1)
    assert clients(worker) == {"shop": "shop.example"}


PATH_TRICKS = [
    "/shop/../admin",
    "/shop/..%2fadmin",
    "/shop/%2e%2e/admin",
    "//admin",
    "/./admin",
    "/admin",
    "/admin/",
    "/admin;/shop",
    "/admin?/shop",
    "/admin%00/shop",
    "/%61dmin",
    "/ADMIN",
    "/admin/../shop/../admin",
    "http://127.0.0.1/admin",
    "*",
]


def test_no_spelling_of_a_path_lets_a_token_into_another_path(
    worker: WorkerProcess, authority: Authority, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No answer and no log shows a secret."""
    worker.stop()
    worker.start()  # whose log is captured
    auth = {
        "tokens": {"shop": "${secret:shop}", "boss": "${secret:ann}"},
        "paths": {"/shop": ["shop"], "/admin": ["boss"]},
    }
    put(tmp_path, "ann", "boss-1")
    worker.run(flow_text("f", source("http", auth=auth, tls=serving(authority))))
    said: dict[str, str] = {}
    for path in [*PATH_TRICKS, "/shop"]:
        with connected(worker, authority, None) as raw:
            raw.sendall(
                f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer shop-1\r\n"
                f"Content-Type: text/plain\r\nContent-Length: {len(path)}\r\n"
                f"Connection: close\r\n\r\n{path}".encode()
            )
            answer = b"".join(iter(lambda raw=raw: raw.recv(1 << 16), b""))  # type: ignore[misc]
        said[path] = answer.decode().split(" ", 2)[1]
        assert not any(secret in answer for secret in (b"shop-1", b"boss-1", b"Traceback"))
    assert said.pop("/shop") == "200"
    assert set(said.values()) <= {"400", "401", "403", "404"}, said
    worker.wait_for_events("f", 1)
    assert clients(worker) == {"/shop": "shop"}
    logged = capfd.readouterr().err
    assert "is rejected" in logged
    assert not any(secret in logged for secret in ("shop-1", "boss-1"))


def hello(size: int) -> bytes:
    """A client hello of ``size`` bytes, in records of the maximum size."""
    body = b"\x01" + size.to_bytes(3, "big") + b"\x03\x03" + bytes(size - 2)
    pieces = [body[at : at + (1 << 14)] for at in range(0, len(body), 1 << 14)]
    return b"".join(b"\x16\x03\x01" + len(one).to_bytes(2, "big") + one for one in pieces)


@pytest.mark.parametrize("name", ["syslog", "http"])
def test_oversized_handshakes_are_ended_and_take_no_memory(
    worker: WorkerProcess, authority: Authority, name: str
) -> None:
    worker.run(flow_text("f", source(name, tls=serving(authority))))
    huge = [hello((1 << 24) - 1), hello(1 << 18), b"\x16\x03\x01\xff\xff" + b"x" * (1 << 20)]
    huge += [b"\x80" + b"x" * (1 << 20), b"GET / HTTP/1.1\r\n\r\n" * 50_000, bytes(1 << 20)]
    before = worker.counters("f")["malformed"]
    for what in huge:
        with socket.create_connection(("127.0.0.1", port(worker)), timeout=60) as raw:
            with suppress(OSError):
                raw.sendall(what)
                raw.shutdown(socket.SHUT_WR)
            with suppress(OSError):
                while raw.recv(1 << 16):
                    pass
    worker.eventually(lambda: worker.counters("f")["malformed"] == before + len(huge))
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) / 1024 < MOST_RSS_MB
    good = "good"
    assert (
        curl(worker, authority, good) == "200"
        if name == "http"
        else is_let_in(worker, authority, None, good)
    )
    assert worker.wait_for_events("f", 1)[0]["body"] == b"good"


def test_missing_secret_fails_that_task_alone(worker: WorkerProcess) -> None:
    auth = {"tokens": {"a": "${secret:nowhere}"}}
    worker.configure(flow_text("bad", source("http", auth=auth)), flow_text("good", source("tcp")))
    worker.eventually(lambda: worker.task("bad").get("state") == "failed")
    worker.eventually(lambda: worker.is_running("good"))
    assert worker.task("bad")["error"].startswith("there is no secret nowhere")


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Raise the limit of descriptors to the system's maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert hard > HALF_OPEN + 100
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("name", ["syslog", "http"])
@pytest.mark.usefixtures("descriptors")
def test_ten_thousand_half_open_connections_stop_no_good_sender(
    worker: WorkerProcess, authority: Authority, name: str
) -> None:
    """They come from six addresses, that of the good sender among them, and go on coming."""
    worker.run(flow_text("f", source(name, tls=serving(authority))))
    attacked, stop = port(worker), threading.Event()
    held: list[socket.socket] = []

    def attack() -> None:
        while not stop.is_set():
            if len(held) >= HALF_OPEN:
                time.sleep(0.002)
                held.pop(0).close()
            half = socket.socket()
            half.setblocking(False)
            half.bind((f"127.0.0.{1 + len(held) % 6}", 0))
            half.connect_ex(("127.0.0.1", attacked))
            held.append(half)

    attacker = threading.Thread(target=attack, daemon=True)
    attacker.start()
    worker.eventually(lambda: len(held) >= HALF_OPEN)
    slowest = 0.0
    for number in range(GOOD):
        began = time.monotonic()
        line = f"good {number}"
        if name == "http":
            assert curl(worker, authority, line) == "200"
        else:
            assert is_let_in(worker, authority, None, line)
        slowest = max(slowest, time.monotonic() - began)
    stop.set()
    attacker.join()
    worker.wait_for_events("f", GOOD)
    assert slowest < SERVED_SECONDS
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) / 1024 < MOST_RSS_MB
    for one in held:
        one.close()


def test_fast_sender_is_read_at_its_rate_and_others_at_once(worker: WorkerProcess) -> None:
    """Over two connections it gets no more than over one."""
    worker.run(flow_text("f", source("tcp", per_peer={"bytes_per_second": 200_000})))
    block = (b"x" * 99 + b"\n") * 1000

    def send(connection: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection.sendall(block)

    with ExitStack() as stack:
        fast = [stack.enter_context(worker.connect("f")) for _ in range(2)]
        threads = [threading.Thread(target=send, args=(one,), daemon=True) for one in fast]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        time.sleep(3)
        slow = stack.enter_context(
            socket.create_connection(("127.0.0.1", port(worker)), source_address=("127.0.0.2", 0))
        )
        slow.sendall(b"slow\n")
        worker.eventually(lambda: "slow" in worker.bodies("f"))
        taken, took = worker.counters("f")["bytes"], time.monotonic() - began
        for one in fast:
            one.shutdown(socket.SHUT_RDWR)
    assert 0.5 * 200_000 * took < taken < 1.3 * 200_000 * took + 100_000


def test_event_rate_of_an_address_is_bounded(worker: WorkerProcess) -> None:
    worker.run(flow_text("f", source("syslog", per_peer={"events_per_second": 100})))
    lines = b"".join(b"<13>%d\n" % number for number in range(2000))
    with worker.connect("f") as sender:
        began = time.monotonic()
        sender.sendall(lines)
        worker.wait_for_events("f", 1000)
        assert time.monotonic() - began > 3, "4 KiB are read at once"
