"""Authentication at the console, with real TLS, certificates and OpenID provider; and floods."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import uvicorn

from flumeng.console.connections import Connections, ConsoleProtocol
from flumeng.console.console import Console
from flumeng.console.serving import Server
from flumeng.console.who.start import Options, prepare
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.zookeeper import ABSENT, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.security.roles import DIRECTORY
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.cluster import new_cluster
from tests.testkit.console import field_of, written
from tests.testkit.daemons import start_logged
from tests.testkit.servers import oidc
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.records import Node

STATUS = "/api/v1/status"
Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``flumeng console`` with options and an identity; returns its URL."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*options: str, identity: Path | None = None, hosts: str) -> str:
        log = tmp_path / f"console-{len(started)}.log"
        environment = {**os.environ, "FLUMENG_ZK": hosts}
        environment.pop(DIRECTORY, None)
        if identity is not None:
            environment[DIRECTORY] = str(identity)
        command = [sys.executable, "-c", "from cli.main import main; main()", "console"]
        command += ["--listen", "127.0.0.1:0", *options]
        started.append(start_logged(log, *command, env=environment))
        wait_for(lambda: b"ready http" in log.read_bytes(), seconds=30)
        found = re.search(r"ready (https?://\S+)", log.read_text())
        assert found
        return found[1].rstrip("/")

    yield begin
    for process in started:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) is not None


def client_with(certificates: Certificates, folder: Path | None, role: str = "") -> httpx2.Client:
    context = ssl.create_default_context(cadata=certificates.authority.pem.decode())
    if folder is not None:
        context.load_cert_chain(folder / f"{role}.pem", folder / f"{role}.key")
    return httpx2.Client(verify=context)


@pytest.fixture
def secured(
    secure_zookeeper: RealZooKeeper, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Callable[..., None]]]:
    """A secured cluster: its address, and what admits and expels members."""
    hosts = f"{secure_zookeeper.address}/{uuid.uuid4().hex[:12]}"
    monkeypatch.setenv(DIRECTORY, str(certificates.folder("admin", name="root")))
    with closing(connect(hosts, session_seconds=4, wait_seconds=10, roles=["admin"])) as admin:
        tree.init(admin)

        def secure(admit: Sequence[str] = (), expel: Sequence[str] = ()) -> None:
            operator = Operator(admin, "test", "", 1.0)
            secure_cluster(operator, cluster=CLUSTER, admit=admit, expel=expel)

        yield hosts, secure


def test_certificates_over_tls(
    secured: tuple[str, Callable[..., None]],
    certificates: Certificates,
    start: Start,
    tmp_path: Path,
) -> None:
    hosts, secure = secured
    secure(admit=["operator:al", "operator:console"])
    own = certificates.folder("operator", name="console")
    url = start("--tls", identity=own, hosts=hosts)
    assert url.startswith("https:")
    operator = certificates.folder("operator", name="al")
    with client_with(certificates, operator, "operator") as client:
        answer = client.get(url + STATUS)
        assert answer.status_code == 200
        assert "server" not in answer.headers
        page = client.get(url)
        assert "operator al (operator)" in page.text
        assert page.headers["set-cookie"].startswith("__Host-flumeng=")
        wait_for(lambda: client.get(url + STATUS).status_code == 200)
        secure(expel=["operator:al"])
        wait_for(lambda: client.get(url + STATUS).status_code == 401, seconds=10)
    with client_with(certificates, certificates.folder("viewer", name="eve"), "viewer") as client:
        assert "viewer eve (viewer)" in client.get(url).text
    with client_with(certificates, None) as client:
        assert client.get(url + STATUS).status_code == 401
    strangers = Certificates(tmp_path / "strangers")
    stranger = strangers.folder("admin", name="mallory")
    with client_with(certificates, stranger, "admin") as client, pytest.raises(httpx2.HTTPError):
        client.get(url + STATUS)


EVERY_PAGE = (
    *("/", "/flows", "/flows/web", "/flows/web/partitions", "/flows/web/events"),
    *("/flows/web/revisions", "/nodes", "/nodes/n1", "/queues", "/journals", "/cursors"),
    *("/audit", "/settings", "/search?q=nothing", "/api"),
    *("/api/v1/flows/web/lag", "/api/v1/flows/web/history", "/api/v1/nodes/n1", "/api/v1/acks"),
    *("/api/v1/tasks", "/api/v1/journals", "/api/v1/cursors", "/api/v1/schema", "/api/v1/audit"),
)


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_access_lists_let_the_console_read_all_and_change_by_its_role(
    secured: tuple[str, Callable[..., None]], certificates: Certificates, start: Start, role: str
) -> None:
    hosts, secure = secured
    with closing(connect(hosts, session_seconds=4, wait_seconds=10, roles=["admin"])) as admin:
        apply_flow(
            Operator(admin, "root", "", 1.0), "flow: web\nsources: [generate]\nsinks: [noop]"
        )
        admin.write(paths.node("n1"), Node(uuid="n1", roles=("ingest",)), ABSENT)
    secure(admit=["operator:al", "operator:console-operator"])
    url = start("--tls", identity=certificates.folder(role, name=f"console-{role}"), hosts=hosts)  # type: ignore[arg-type]
    operator = certificates.folder("operator", name="al")
    with client_with(certificates, operator, "operator") as client:
        wait_for(lambda: "n1" in client.get(f"{url}/").text, "no picture")
        answers = {page: client.get(f"{url}{page}").status_code for page in EVERY_PAGE}
        assert set(answers.values()) == {200}, answers
        paused = client.post(
            f"{url}/api/v1/flows/web/pause", json={"reason": "disk"}, headers={"Origin": url}
        )
        assert paused.status_code == (200 if role == "operator" else 403), paused.text
        assert "own certificate" in paused.text or role == "operator"
        audit = client.get(f"{url}/api/v1/audit").json()
        assert (audit[-1]["who"] == "operator al") == (role == "operator")


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[oidc.RealOidc]:
    try:
        oidc.modules()
    except (UserError, UnavailableError) as error:
        pytest.skip(str(error))
    provider = oidc.RealOidc(tmp_path)
    yield provider
    provider.stop()


def test_login_at_a_real_provider(provider: oidc.RealOidc, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    url = f"http://{listen}"
    people = {"al@example.org": ["sre"], "eve@example.org": ["staff"]}
    provider.start(f"{url}/login/oidc/callback", json.dumps(people))
    text = f"""issuer: {provider.issuer}
client_id: {provider.client_id}
client_secret: ${{secret:console}}
groups: {{sre: {{role: operator, flows: [web]}}}}
"""
    options = Options(listen, oidc=written(tmp_path, "oidc.yaml", text), url=url)
    console = Console(new_cluster())
    who, tls = prepare(console.store, options, None, lambda _reference: provider.secret)
    server = Server(console, listen, who, tls)
    server.start()
    try:
        with httpx2.Client(follow_redirects=True, timeout=30) as browser:
            assert browser.get(url + "/").status_code == 401
            page = log_in(browser, url, "al@example.org")
            assert page.url == url + "/flows"
            answer = browser.get(url + "/")
            assert "oidc:al@example.org (operator)" in answer.text
            csrf = field_of(answer.text, "csrf")
            left = browser.post(url + "/logout", data={"csrf": csrf})
            assert f"{provider.issuer}/session/end" in left.text
            assert browser.get(url + STATUS).status_code == 401
        with httpx2.Client(follow_redirects=True, timeout=30) as browser:
            page = log_in(browser, url, "eve@example.org")
            assert page.status_code == 401
            assert "oidc:eve@example.org is in no group" in page.text
    finally:
        server.stop()


def log_in(browser: httpx2.Client, url: str, email: str) -> httpx2.Response:
    """Go to the provider, log in there and consent, and come back."""
    page = browser.get(f"{url}/login/oidc?then=/flows")
    for _ in range(2):
        if urlsplit(str(page.url)).netloc == urlsplit(url).netloc:
            break
        found = re.search(r'<form[^>]*action="([^"]+)"', page.text)
        assert found, page.text
        prompt = re.search(r'name="prompt" value="([^"]+)"', page.text)
        assert prompt, page.text
        form = {"prompt": prompt[1], "login": email, "password": "any"}
        page = browser.post(found[1], data=form)
    return page


@pytest.fixture
def open_console(zookeeper: str, start: Start) -> str:
    hosts = f"{zookeeper}/{uuid.uuid4().hex[:12]}"
    with closing(connect(hosts, session_seconds=4, wait_seconds=10)) as store:
        tree.init(store)
    return start(hosts=hosts)


def seconds_of(url: str) -> float:
    began = time.monotonic()
    answer = httpx2.get(url + STATUS, timeout=30)
    assert answer.status_code == 200
    return time.monotonic() - began


def test_flood_of_slow_viewers_leaves_room(open_console: str) -> None:
    """Silent ones, ones with half a request, with half a body, and ones that read nothing."""
    host, port = urlsplit(open_console).hostname, urlsplit(open_console).port
    assert host is not None
    assert port is not None
    named = f"Host: {host}:{port}\r\n".encode()
    half_head = b"GET / HTTP/1.1\r\n" + named
    half_body = b"POST /login HTTP/1.1\r\n" + named + b"Content-Length: 100\r\n\r\na"
    unread = b"GET /static/vendor/htmx.min.js HTTP/1.1\r\n" + named + b"\r\n"
    with ExitStack() as stack:
        for number in range(1300):
            with suppress(OSError):
                viewer = socket.create_connection((host, port), timeout=5)
                stack.enter_context(viewer)
                viewer.sendall([b"", half_head, half_body][number % 3])
        for _ in range(8):
            viewer = socket.create_connection((host, port), timeout=5)
            stack.enter_context(viewer)
            viewer.sendall(unread * 80)
        assert seconds_of(open_console) < 15
        assert seconds_of(open_console) < 15


def test_large_heads_are_refused(open_console: str) -> None:
    answer = httpx2.get(open_console + "/", headers={"x-a": "a" * 40_000})
    assert answer.status_code == 431
    with socket.create_connection(
        (str(urlsplit(open_console).hostname), int(urlsplit(open_console).port or 0))
    ) as raw:
        raw.settimeout(10)
        raw.sendall(b"GET / HTTP/1.1\r\nX-A: ")
        with suppress(OSError):
            for _ in range(40):
                raw.sendall(b"a" * 1000)
                time.sleep(0.005)
        assert raw.recv(100).startswith(b"HTTP/1.1 431 ")


def test_new_connection_takes_the_place_of_the_oldest_idle_one() -> None:
    """At the limit; one that is being answered keeps its place."""
    asyncio.run(_crowd())


async def _crowd() -> None:
    gate = asyncio.Event()

    async def app(_scope: object, _receive: object, send: Callable[..., object]) -> None:
        await gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[misc]
        await send({"type": "http.response.body", "body": b"done"})  # type: ignore[misc]

    config = uvicorn.Config(app, http=ConsoleProtocol, lifespan="off", log_config=None)
    state = uvicorn.Server(config).server_state
    listener = socket.create_server(("127.0.0.1", 0))
    place = listener.getsockname()
    connections = Connections(listener, lambda: ConsoleProtocol(config, state, {}), None, most=3)
    busy_reader, busy = await asyncio.open_connection(*place)
    busy.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    await asyncio.sleep(0.1)
    idle = [await asyncio.open_connection(*place) for _ in range(3)]
    async with asyncio.timeout(5):
        assert await idle[0][0].read() == b""
    gate.set()
    async with asyncio.timeout(5):
        assert (await busy_reader.read()).endswith(b"done\r\n0\r\n\r\n")
    for _, writer in idle:
        writer.close()
    connections.close()
    await connections.wait_closed()


def test_unsafe_options_are_refused_with_all_problems(tmp_path: Path, zookeeper: str) -> None:
    hosts = f"{zookeeper}/{uuid.uuid4().hex[:12]}"
    with closing(connect(hosts, session_seconds=4, wait_seconds=10)) as store:
        tree.init(store)
    bad = written(tmp_path, "oidc.yaml", "issuer: ftp://x\nclient_id: c\ngroups: {a: {role: b}}\n")
    command = [sys.executable, "-c", "from cli.main import main; main()", "console", "--zk", hosts]
    command += ["--listen", "0.0.0.0:0", "--oidc", str(bad), "--tokens", str(tmp_path / "absent")]
    command += ["--url", "http://console.example", "--key", str(written(tmp_path, "key", "short"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    for part in (
        "other hosts could read and change all without a proof",
        "expected a URL like https://login.example/realm",
        "client_secret",
        "cannot read the tokens",
        "--url http://console.example: expected https",
        "fewer than 32",
    ):
        assert part in done.stderr, done.stderr
