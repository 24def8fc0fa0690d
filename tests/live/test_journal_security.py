"""Requests that each certificate may send to journal servers: real servers in a process.

Protects that events are read only with a proven identity whose role needs them; that an executor
reads the ranges that its collector grants, for the granted time, and nothing else; that errors
disclose nothing of the code; and that one peer leaves room for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flumeng.connectors.api.ranged import Range
from flumeng.connectors.journals.executor_tokens import ExecutorTokens
from flumeng.connectors.journals.reader import JournalReader
from flumeng.journal.log.errors import DeniedError, TapDeniedError
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.serving import watch_client
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.proof import Proof
from flumeng.journal.serving.server import JournalServer
from flumeng.journal.serving.tokens import TOKEN_SECONDS, Claims
from flumeng.journal.serving.watch import WatchRequest
from flumeng.journal.serving.wire import FRAMES_SCHEMA, make_ticket
from flumeng.platform.errors import FlumengError, UnavailableError
from flumeng.platform.security.authority import new_authority
from flumeng.platform.security.credentials import Credentials, Keystore
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.identity import Identity
from flumeng.platform.security.roles import DIRECTORY, ROLES, Role
from tests.live.journal_servers import (
    APP,
    EVENTS,
    LARGE,
    SECRET,
    WEB,
    Executor,
    Served,
    altered,
    bodies,
    proof_of,
    serving,
)
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import retry, wait_for


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    top = tmp_path_factory.mktemp("served")
    certificates = Certificates(top / "certificates")
    identity = certificates.folder("node")
    with serving(certificates, top / "server", **{DIRECTORY: str(identity)}) as served:
        yield served


async def first_answer(served: Served, proof: Proof | None, journal: str) -> Any:
    watch = watch_client.watch(served.address, WatchRequest((journal,)), lambda: proof)
    async with contextlib.aclosing(watch) as answers:
        return await anext(answers)


def ask(served: Served, proof: Proof | None, what: str, journal: str = WEB) -> object:
    if what == "watch":
        return asyncio.run(first_answer(served, proof, journal)).positions[journal].safe
    with served.client(proof) as client:
        asked: dict[str, Callable[[], object]] = {
            "read": lambda: bodies(client.read(journal, 0, EVENTS)),
            "one event": lambda: bodies(client.read(journal, 7, 8)),
            "tap": lambda: bodies(client.tap(journal, EVENTS - 5, EVENTS)),
            "positions": lambda: client.positions()[journal].safe,
            "accounts": lambda: client.accounts()[journal].safe,
            "counters": client.counters,
            "check targets": lambda: len(client.check_targets("web", "flow: web", "")),
        }
        return asked[what]()


TOLD = {
    "read": EVENTS,
    "one event": 1,
    "tap": 5,
    "watch": EVENTS,
    "positions": EVENTS,
    "accounts": EVENTS,
    "counters": [],
    "check targets": 1,
}
PEOPLE_MAY = {"tap", "positions", "accounts", "counters"}
MAY: dict[Role, set[str]] = {
    "collector": {"read", "one event", "watch", "positions"},
    "discovery": {"one event", "positions"},
    "admin": PEOPLE_MAY | {"check targets"},
    "operator": PEOPLE_MAY | {"check targets"},
    "viewer": PEOPLE_MAY,
    "subscriber": {"read", "one event", "watch", "positions"},
    "executor": set(),
    "gateway": {"read", "one event", "watch", "positions", "accounts"},
    "node": set(),
    "master": set(),
    "zookeeper": set(),
}


@pytest.mark.parametrize("role", ROLES)
def test_each_role_gets_the_requests_it_needs_and_no_others(served: Served, role: Role) -> None:
    proof = served.proof(role, "research")
    for what, told in TOLD.items():
        if what in MAY[role]:
            assert ask(served, proof, what) == told, what
        else:
            with pytest.raises(
                (DeniedError, UnavailableError), match=r"does not allow|token|one event"
            ):
                ask(served, proof, what)


def test_subscriber_reads_the_flows_that_the_nodes_policy_names(served: Served) -> None:
    research, audit = served.proof("subscriber", "research"), served.proof("subscriber", "audit")
    stranger = served.proof("subscriber", "stranger")
    assert ask(served, research, "read", WEB) == ask(served, audit, "read", WEB) == EVENTS
    assert ask(served, audit, "read", APP) == EVENTS
    for who, journal in ((research, APP), (stranger, WEB), (stranger, APP)):
        with pytest.raises(DeniedError, match="subscribers"):
            ask(served, who, "read", journal)
        with pytest.raises(UnavailableError, match="may not watch"):
            ask(served, who, "watch", journal)
        with served.client(who) as client:
            assert journal not in client.positions()


def test_viewer_taps_only_the_flows_that_the_policy_allows(served: Served) -> None:
    viewer = served.proof("viewer")
    assert ask(served, viewer, "tap", WEB) == 5
    with pytest.raises(TapDeniedError):
        ask(served, viewer, "tap", APP)


class Strangers:
    """Clients that are rejected before their first request."""

    def __init__(self, served: Served) -> None:
        ca = served.certificates.authority.pem
        other = new_authority(CLUSTER, utc_now())
        collector = Identity(CLUSTER, "collector", "n1")
        good = served.proof("collector")
        self.by_name: dict[str, Proof | None] = {
            "plain": None,
            "of another authority": proof_of(other, collector, ca=ca),
            "that trusts another authority": replace(good, ca=other.pem),
            "expired": proof_of(served.certificates.authority, collector, days=1, days_ago=2),
            "of the future": proof_of(served.certificates.authority, collector, days_ago=-1),
        }


@pytest.mark.parametrize("what", ["read", "positions", "watch", "accounts", "tap"])
def test_client_without_a_certificate_of_the_cluster_is_refused(served: Served, what: str) -> None:
    for name, proof in Strangers(served).by_name.items():
        with pytest.raises(UnavailableError):
            ask(served, proof, what)
            pytest.fail(f"a client {name} was let in")
    assert ask(served, served.proof("collector"), "read") == EVENTS


def test_client_without_a_certificate_is_refused(served: Served) -> None:
    ca = served.certificates.authority.pem
    bare = flight.FlightClient(f"grpc+tls://{served.address}", tls_root_certs=ca)
    with bare, pytest.raises(flight.FlightUnavailableError):
        list(bare.do_action(flight.Action("positions", b"")))


def test_certificate_of_another_cluster_of_the_same_authority_is_refused(served: Served) -> None:
    other = proof_of(served.certificates.authority, Identity("elsewhere", "collector", "n1"))
    for what in ("read", "positions", "accounts", "tap"):
        with pytest.raises(DeniedError, match="is for the cluster elsewhere"):
            ask(served, other, what)


def test_server_certificate_for_another_host_is_not_trusted(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    wrong = certificates.folder("node", name="n2", hosts=["other.example"])
    with serving(certificates, tmp_path / "n2", **{DIRECTORY: str(wrong)}) as n2:
        for what in ("read", "watch"):
            with pytest.raises(UnavailableError):
                ask(n2, n2.proof("collector"), what)
    right = certificates.folder("node", name="n1", hosts=["127.0.0.1"])
    with serving(certificates, tmp_path / "n1", **{DIRECTORY: str(right)}) as n1:
        for what in ("read", "watch"):
            assert ask(n1, n1.proof("collector"), what) == EVENTS


def test_no_client_sends_a_key_or_events_to_a_server_without_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    with serving(certificates, tmp_path / "open", **{DIRECTORY: ""}) as plain:
        assert ask(plain, None, "read") == EVENTS
        for what in ("read", "watch"):
            with pytest.raises(UnavailableError):
                ask(plain, plain.proof("collector"), what)


def handshake(served: Served, version: ssl.TLSVersion) -> str | None:
    proof = served.proof("collector")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=proof.ca.decode())
    files = Keystore(served.certificates.folder("collector"), "collector")
    context.load_cert_chain(files.certificate, files.key)
    context.minimum_version = context.maximum_version = version
    host, _, port = served.address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        return encrypted.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_older_versions_of_tls_are_refused(served: Served) -> None:
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(served, version)
    assert handshake(served, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    assert handshake(served, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"


def test_executor_reads_the_range_of_its_token_and_parts_of_it(served: Served) -> None:
    executor = Executor(served)
    token = executor.ticketed()
    assert executor.read(token) == executor.read(token) == 100
    assert executor.read(token, start=150, end=160) == 10


@pytest.mark.parametrize(
    ("journal", "start", "end"),
    [(WEB, 99, 200), (WEB, 100, 201), (WEB, 0, EVENTS), (WEB, 300, 400), (APP, 100, 200)],
)
def test_token_is_refused_for_another_range_or_journal(
    served: Served, journal: str, start: int, end: int
) -> None:
    executor = Executor(served)
    with pytest.raises(DeniedError, match="this token is for"):
        executor.read(executor.ticketed(), journal, start, end)
    assert executor.read(executor.ticketed(journal, start, end), journal, start, end) == end - start


def test_token_expires_and_does_not_begin_in_the_future(served: Served) -> None:
    for seconds in (-TOKEN_SECONDS - 1, 120):
        late = Executor(served, seconds=seconds)
        with pytest.raises(DeniedError, match="not valid now"):
            late.read(late.ticketed())
    nearly = Executor(served, seconds=-TOKEN_SECONDS + 60)
    assert nearly.read(nearly.ticketed()) == 100


def test_an_altered_token_is_refused(served: Served) -> None:
    executor = Executor(served)
    token = executor.ticketed()
    assert altered(token).partition(".")[2] == token.partition(".")[2]
    until = utc_now().timestamp() + 300
    for claims in ({"end": EVENTS}, {"journal": APP}, {"until": until}, {"cluster": "other"}):
        with pytest.raises(DeniedError, match=r"not accepted: its signature"):
            executor.read(altered(token, **claims))
    said, signature, certificates = token.split(".")
    swapped = executor.ticketed(WEB, 0, EVENTS).split(".")
    for wrong in (
        f"{swapped[0]}.{signature}.{certificates}",
        f"{said}..{certificates}",
        f"{said}.{signature}.",
        f"{said}.{signature}",
        "x.y.z",
        "\u00e4",
        said,
    ):
        with pytest.raises(DeniedError):
            executor.read(wrong)


def test_only_a_collector_of_this_cluster_signs_tokens(served: Served) -> None:
    authority, other = served.certificates.authority, new_authority(CLUSTER, utc_now())
    collector = Identity(CLUSTER, "collector", "n1")
    strangers: dict[str, Proof] = {
        **{role: proof_of(authority, Identity(CLUSTER, role, "n1")) for role in ROLES},
        "of another authority": proof_of(other, collector),
        "of another cluster": proof_of(authority, Identity("elsewhere", "collector", "n1")),
        "expired": proof_of(authority, collector, days=1, days_ago=2),
    }
    del strangers["collector"]
    for name, proof in strangers.items():
        signer = Credentials(proof.ca, proof.certificate, proof.key.encode())
        executor = Executor(served, signer)
        with pytest.raises(DeniedError):
            executor.read(executor.ticketed())
            pytest.fail(f"{name} signs tokens")


def test_token_is_valid_for_executors_alone(served: Served) -> None:
    executor = Executor(served)
    token = executor.ticketed()
    for role in ("viewer", "admin", "node", "subscriber"):
        with pytest.raises(DeniedError):
            executor.read(token, role=role)
    with pytest.raises(UnavailableError):
        JournalClient(served.address, 5, prove=lambda: None).positions()


def test_python_process_elsewhere_reads_with_the_drivers_token_alone(
    served: Served, tmp_path: Path
) -> None:
    """It has no directory of certificates, and none of the packages that only drivers have."""
    folder = served.certificates.folder("collector", "executor", name="driver")
    executor_tokens = ExecutorTokens(Keystore(folder, "collector"), Keystore(folder, "executor"))
    reader = JournalReader(executor_tokens=executor_tokens)
    splits = ((Range(WEB, 10, 60), Range(APP, 0, 5)), (Range(WEB, 60, 110),))
    addresses = reader.admitted(splits, {WEB: served.address, APP: served.address})
    key = Keystore(folder, "executor").key.read_text()
    assert key.splitlines()[1] not in repr(pickle.loads(pickle.dumps(reader)))
    own = Keystore(folder, "collector").key.read_bytes()
    assert own.splitlines()[1] not in pickle.dumps((reader, addresses)), "the collector's own key"
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('grpc', 'cryptography', 'kazoo'))); "
        "import pickle; reader, splits, addresses = pickle.load(sys.stdin.buffer); "
        "print([sum(b.num_rows for p in s for b in reader.read(p, addresses[p.partition])) "
        "for s in splits])"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop(DIRECTORY, None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps((reader, splits, addresses)),
        env=environment, cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert done.stdout.decode().strip() == "[55, 50]", done.stderr.decode()
    assert not list(tmp_path.iterdir()), "nothing is written to a disk"
    with pytest.raises(DeniedError, match="token"):
        list(pickle.loads(pickle.dumps(reader)).read(Range(WEB, 10, 60), served.address))


def put(raw: flight.FlightClient) -> None:
    writer, _ = raw.do_put(flight.FlightDescriptor.for_path("x"), FRAMES_SCHEMA)
    writer.close()


def test_errors_disclose_nothing_of_the_code_to_a_client(served: Served) -> None:
    proof = served.proof("viewer")
    (served.folder / "fail").touch()
    said: list[str] = []
    with flight.FlightClient(
        f"grpc+tls://{served.address}",
        tls_root_certs=proof.ca, cert_chain=proof.certificate, private_key=proof.key,
    ) as raw:  # fmt: skip
        place = flight.FlightDescriptor.for_path("x")
        calls: list[Callable[[], object]] = [
            lambda: list(raw.do_action(flight.Action("accounts", b""))),
            lambda: list(raw.do_action(flight.Action("no such", b""))),
            lambda: list(raw.do_action(flight.Action("watch", b"{"))),
            lambda: raw.do_get(flight.Ticket(b"\xff{")).read_all(),
            lambda: raw.do_get(flight.Ticket(make_ticket(WEB, 0, 10))).read_all(),
            lambda: list(raw.list_flights()),
            lambda: list(raw.list_actions()),
            lambda: raw.get_flight_info(place),
            lambda: put(raw),
            lambda: list(raw.do_exchange(place)[1]),
        ]
        for call in calls:
            with pytest.raises((flight.FlightError, pa.ArrowException)) as refused:
                call()
            said.append(str(refused.value))
        assert raw.get_schema(place).schema == FRAMES_SCHEMA
    (served.folder / "fail").unlink()
    for text in said:
        for leaked in ("Traceback", ".py", SECRET):
            assert leaked not in text
    assert "see the log of the server" in said[0]
    assert SECRET in served.log.read_text(), "the log of the server says what it was"
    assert ask(served, proof, "accounts", APP) == EVENTS


NAMES = [
    "../../../etc/passwd",
    "/etc/passwd",
    f"{APP}/../{WEB}",
    f"./{WEB}",
    f"{WEB}\0",
    f"{WEB}%00",
    "%2e%2e%2f" + WEB,
    "..",
    "",
    "*",
    "x" * (1 << 20),
]


def test_journal_name_cannot_escape_the_journal_directory(served: Served) -> None:
    proof = served.proof("collector")
    with served.client(proof) as client:
        for name in NAMES:
            with pytest.raises((FlumengError, flight.FlightError)) as refused:
                bodies(client.read(name, 0, 1))
            assert "root:" not in str(refused.value)
            assert len(str(refused.value)) < 2 * len(name) + 1000
    assert ask(served, proof, "read") == EVENTS


def test_refusals_are_logged_by_the_server_without_a_secret(served: Served) -> None:
    executor = Executor(served)
    with pytest.raises(DeniedError):
        executor.read(executor.ticketed(), APP)
    logged = served.log.read_text()
    assert "a call is refused" in logged
    key = served.proof("collector").key
    for secret in (executor.ticketed().split(".")[1], "PRIVATE KEY", str(key.encode())[:40]):
        assert secret not in logged


class Hoard:
    """Many concurrent reads of a large journal of which only the beginning is taken."""

    def __init__(self, served: Served, proof: Proof, count: int) -> None:
        self.begun = 0
        self.refused: list[str] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._hold, args=(served, proof)) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _hold(self, served: Served, proof: Proof) -> None:
        with JournalClient(served.address, 300, prove=lambda: proof) as client:
            events = client.read(LARGE, 0, EVENTS + 60_000)
            try:
                next(events)
            except UnavailableError as error:
                with self._lock:
                    self.refused.append(str(error))
                return
            with self._lock:
                self.begun += 1
            self._done.wait()
            with contextlib.suppress(FlumengError):
                events.close()  # type: ignore[attr-defined]

    def close(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()


def test_one_peer_with_many_reads_leaves_room_for_another(served: Served) -> None:
    hoard = Hoard(served, served.proof("collector", "greedy"), 200)
    try:
        wait_for(lambda: hoard.begun + len(hoard.refused) >= 200)
        # Under load some begin late, and displace reads that stood still: refusals are not counted.
        assert any("yours" in text for text in hoard.refused)
        began = time.monotonic()
        assert ask(served, served.proof("collector", "modest"), "read") == EVENTS
        assert ask(served, served.proof("collector", "modest"), "watch") == EVENTS
        assert time.monotonic() - began < 20
    finally:
        hoard.close()


@pytest.fixture
def renewed(tmp_path: Path) -> Iterator[tuple[Any, Any, Any]]:
    certificates = Certificates(tmp_path / "certificates")
    folder = certificates.folder("node", "collector")
    journal = MemoryJournal.create(tmp_path, WEB, limits=Limits(1 << 20))
    journal.append(numbered_events(0, EVENTS))
    journal.sync()
    server = JournalServer(
        "127.0.0.1", journals=lambda: {WEB: journal}, keystore=Keystore(folder, "node")
    )
    yield certificates, Keystore(folder, "collector"), server.address
    assert server.stop()


def shown(address: str, proof: Proof) -> bytes | None:
    """The certificate that a server shows."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=proof.ca.decode())
    try:
        with (
            socket.create_connection((host, int(port)), 5) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            return encrypted.getpeercert(binary_form=True)
    except OSError:
        return None


def test_new_certificate_is_served_at_the_same_port(renewed: tuple[Any, Any, Any]) -> None:
    certificates, keystore, address = renewed
    proof = Proof.of(keystore.load())
    with JournalClient(address, 10, prove=lambda: proof) as client:
        assert bodies(client.read(WEB, 0, EVENTS)) == EVENTS
        before = shown(address, proof)
        assert before == shown(address, proof) is not None
        certificates.folder("node")
        wait_for(lambda: shown(address, proof) not in (before, None), "it still shows the old one")
        # a reader makes its call again, as after a restart
        assert retry(lambda: bodies(client.read(WEB, 0, EVENTS)), UnavailableError) == EVENTS


def test_invalid_new_certificate_does_not_replace_the_good_one(
    renewed: tuple[Any, Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    _, keystore, address = renewed
    proof = Proof.of(keystore.load())
    Keystore(keystore.folder, "node").certificate.write_bytes(b"no certificate")
    wait_for(lambda: "keeps its previous certificate" in caplog.text)
    with JournalClient(address, 10, prove=lambda: proof) as client:
        assert bodies(client.read(WEB, 0, EVENTS)) == EVENTS


def test_claims_name_nothing_that_is_not_checked() -> None:
    """A new claim is added here together with its check in ``tokens.require``."""
    assert Claims.__struct_fields__ == ("cluster", "journal", "start", "end", "until")
