"""Senders that are answered when the sinks have their events, through ``flumeng standalone`` with
processes that are stopped and killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from flumeng.agent.standalone.embedded import free_port
from tests.live.chaos import command_of, descendants
from tests.live.one_host import Standalone
from tests.live.receiver import Receiver, taken
from tests.testkit.ingest_worker import WorkerProcess, flow_text
from tests.testkit.waiting import wait_for

BOUND_SECONDS = 3.0
SENDERS = 8
EACH = 10
FROZEN = "org.apache.zookeeper"


def post(address: str, *bodies: str) -> tuple[int, str, float]:
    """Status, text and seconds of the answer."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=120)
    connection.request("POST", "/", "\n".join(bodies))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, time.monotonic() - began


class Host(Standalone):
    """A flow from HTTP to HTTP, answered after delivery: on one port as soon as it comes, on the
    other within the bound."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bounded_port = free_port()
        self.receiver = Receiver(folder / "taken")
        self.receiver.start()
        self.flow.write_text(
            f"""
flow: web
sources:
  - http: {{listen: "127.0.0.1:{self.port}", ack: delivered, ack_timeout_seconds: 100}}
  - http:
      listen: "127.0.0.1:{self.bounded_port}"
      ack: delivered
      ack_timeout_seconds: {BOUND_SECONDS}
batch: {{seconds: 0}}
filters: [where: "CAST(body AS STRING) != 'drop this'"]
sinks: [http: {{url: "{self.receiver.url}", idempotent: true}}]
"""
        )

    def post(self, *bodies: str, port: int = 0) -> tuple[int, str, float]:
        return post(f"127.0.0.1:{port or self.port}", *bodies)

    def bodies(self) -> list[str]:
        return [event["body"] for event in taken(self.receiver.folder)]

    def child(self, module: str) -> int:
        assert self.process is not None
        below = descendants(self.process.pid)
        return next(pid for pid in below if any(module in word for word in command_of(pid)))

    @contextmanager
    def frozen(self, module: str) -> Iterator[None]:
        pid = self.child(module)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("delivered"))
    host.start("--flow", str(host.flow))
    assert host.post("first")[0] == 200
    yield host
    host.stop()
    host.receiver.shutdown()
    host.receiver.server_close()


@pytest.mark.long
def test_sinks_have_the_events_at_the_moment_of_the_answer(host: Host) -> None:
    """Many at once, of several events each."""
    seconds: list[float] = []

    def send(sender: int) -> None:
        for number in range(EACH):
            bodies = [f"at once {sender} {number} {event}" for event in range(3)]
            status, text, took = host.post(*bodies)
            assert status == 200, text
            assert set(bodies) <= set(host.bodies()), "answered before it was delivered"
            seconds.append(took)

    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(send, range(SENDERS)))
    seconds.sort()
    print(f"p50 {seconds[len(seconds) // 2]:.3f} s, most {seconds[-1]:.3f} s")


@pytest.mark.long
def test_event_dropped_by_a_filter_is_answered_with_200(host: Host) -> None:
    status, text, _ = host.post("drop this")
    assert (status, json.loads(text)) == (200, {})
    assert "drop this" not in host.bodies()


@pytest.mark.parametrize("module", ["flumeng.agent.collector", FROZEN])
@pytest.mark.long
def test_frozen_process_delays_no_ack_timeout_and_loses_no_event(host: Host, module: str) -> None:
    body = f"while {module} stood still"
    with host.frozen(module):
        status, text, took = host.post(body, port=host.bounded_port)
    assert status == 504
    assert "journaled, but not delivered" in text
    assert BOUND_SECONDS <= took < BOUND_SECONDS + 2.0
    wait_for(lambda: body in host.bodies(), "what was accepted is not delivered")
    assert host.post("afterwards")[0] == 200


def test_killed_worker_loses_no_event_of_waiting_senders(host: Host) -> None:
    bodies = [f"before the kill {number}" for number in range(SENDERS)]
    with host.frozen("flumeng.agent.collector"), ThreadPoolExecutor(SENDERS) as pool:
        answers: list[Future[tuple[int, str, float]]] = [
            pool.submit(host.post, body) for body in bodies
        ]
        time.sleep(1.0)
        os.kill(host.child("flumeng.agent.ingest"), signal.SIGKILL)
        for answer in answers:
            assert isinstance(answer.exception(), http.client.HTTPException | OSError)

    def retried() -> bool:
        try:
            return host.post("retried")[0] == 200
        except OSError:
            return False

    wait_for(retried, "the next worker answers nobody")
    assert set(bodies) <= set(host.bodies())


def test_ack_of_an_older_journal_answers_no_waiting_sender(worker: WorkerProcess) -> None:
    """Its events had seqs too, and the next journal begins with 0."""
    source = 'http: {listen: "127.0.0.1:0", ack: delivered, ack_timeout_seconds: 100}'
    text = flow_text("f", source)
    used: set[str] = set()
    with ThreadPoolExecutor(1) as pool:
        for revision, durability in enumerate(("disk", "spill"), 1):
            worker.run(f"{text}durability: {durability}\n", revision=revision)
            answer = pool.submit(post, worker.task("f")["listen"][0], "a", "b")
            (journal,) = worker.eventually(lambda: set(worker.awaited) - used)
            worker.send(type="delivered", acks=dict.fromkeys(used, 100))
            worker.send(type="delivered", acks={journal: 1})
            time.sleep(0.3)
            assert not answer.done()
            worker.send(type="delivered", acks={journal: 2})
            assert answer.result()[0] == 200
            used.add(journal)
    assert len(used) == 2


@pytest.mark.parametrize("last", ["quiesce", "stop"])
def test_stopping_worker_still_answers_delivered_events(worker: WorkerProcess, last: str) -> None:
    """A 503 a moment before the ack would make senders send their events again."""
    worker.run(flow_text("f", 'http: {listen: "127.0.0.1:0", ack: delivered}'))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, worker.task("f")["listen"][0], "a")
        (journal,) = worker.eventually(lambda: worker.awaited)
        worker.send(type=last)
        time.sleep(0.3)
        worker.send(type="delivered", acks={journal: 1})
        assert answer.result()[0] == 200
