"""The ingest worker as a real process: real sockets and files, SIGKILL, and its messages to the
node."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flumeng.agent.standalone.embedded import free_port
from tests.testkit.ingest_worker import WorkerProcess, flow_text


def tcp(listen: str = "127.0.0.1:0", **options: Any) -> str:
    more = "".join(f", {key}: {value}" for key, value in options.items())
    return f'syslog: {{listen: "{listen}"{more}}}'


def tail(*paths: Path, **options: Any) -> str:
    more = "".join(f", {key}: {value}" for key, value in options.items())
    return f"tail: {{paths: {json.dumps([str(path) for path in paths])}{more}}}"


def test_events_of_all_sources_of_a_flow_arrive_whole(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    log = tmp_path / "app.log"
    log.write_text("a line\n")
    worker.run(flow_text("all", tcp(), tcp(protocol="udp"), tail(log)))
    with worker.connect("all") as newlines, worker.connect("all") as counted:
        newlines.sendall(b"<13>1 - h a - - - caf\xe9\r\n<14>Oct 11 22:14:15 h su: x\n\nthe last")
        counted.sendall(b"9 <13>a\nb c13 <13>the other")
        peers = {f"127.0.0.1:{s.getsockname()[1]}" for s in (newlines, counted)}
    host, _, port = worker.task("all")["listen"][1].rpartition(":")
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for datagram in (b"<13>one\ndatagram\n", b"", b"<13>two"):
            sender.sendto(datagram, (host, int(port)))
    events = worker.wait_for_events("all", 8)
    assert sorted(event["body"] for event in events) == sorted(
        [
            b"<13>1 - h a - - - caf\xe9",
            b"<14>Oct 11 22:14:15 h su: x",
            b"the last",
            b"<13>a\nb c",
            b"<13>the other",
            b"<13>one\ndatagram",
            b"<13>two",
            b"a line",
        ]
    )
    syslog = [event for event in events if dict(event["attrs"])["source"] == "syslog"]
    assert {event["host"] for event in syslog} == {"127.0.0.1"}
    assert peers < {dict(event["attrs"])["peer"] for event in syslog}
    assert [event["seq"] for event in events] == list(range(8))


def test_a_port_in_use_fails_that_task_alone_until_it_is_free(worker: WorkerProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        worker.configure(flow_text("bad", tcp(place)), flow_text("good", tcp()))
        worker.eventually(lambda: worker.task("bad").get("state") == "failed")
        assert worker.task("bad")["error"] == f"cannot listen on {place} (tcp): the port is in use"
        worker.eventually(lambda: worker.is_running("good"))
        with worker.connect("good") as connection:
            connection.sendall(b"x\n")
        worker.wait_for_events("good", 1)
    worker.eventually(lambda: worker.is_running("bad"))
    assert worker.task("bad")["error"] is None


def test_unreadable_spec_fails_that_task_alone(worker: WorkerProcess) -> None:
    worker.configure("flow: bad\nsources: 7\n", flow_text("good", tcp()))
    worker.eventually(lambda: worker.task("bad").get("state") == "failed")
    worker.eventually(lambda: worker.is_running("good"))
    assert "sources" in worker.task("bad")["error"]


def test_only_changed_sources_are_restarted(worker: WorkerProcess, tmp_path: Path) -> None:
    """A connection lives through a new epoch and a new revision; the journal stays the same."""
    log = tmp_path / "app.log"
    log.write_text("1\n")
    stays, port = tcp(), free_port()
    worker.run(flow_text("f", stays, tail(log)))
    with worker.connect("f") as connection:
        connection.sendall(b"before\n")
        worker.wait_for_events("f", 2)
        worker.run(
            flow_text("f", stays, tail(log, poll_seconds=0.05), tcp(f"127.0.0.1:{port}")),
            revision=2,
        )
        with log.open("a") as file:
            file.write("2\n")
        connection.sendall(b"after\n")
        worker.wait_for_events("f", 4)
    assert sorted(worker.bodies("f")) == ["1", "2", "after", "before"]
    worker.run(flow_text("f", tail(log, poll_seconds=0.05)), revision=3)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert len(worker.journals("f")) == 1
    assert worker.task("f")["listen"] == []


@pytest.mark.parametrize("end", ["stop", "quiesce", "eof", "sigterm"])
def test_received_events_are_committed_at_the_end(worker: WorkerProcess, end: str) -> None:
    """Also those that the kernel has taken from a sender that is gone; half a line was never
    accepted."""
    worker.run(flow_text("f", tcp()))
    with worker.connect("f") as connection, worker.connect("f") as idle:
        worker.process.send_signal(signal.SIGSTOP)
        connection.sendall(b"".join(b"line %d\n" % number for number in range(10_000)) + b"half")
        idle.sendall(b"")
        if end == "eof":
            worker.process.stdin.close()  # type: ignore[union-attr]
        elif end == "sigterm":
            worker.process.terminate()
        else:
            worker.send(type=end)
        worker.process.send_signal(signal.SIGCONT)
        if end == "quiesce":
            worker.eventually(lambda: worker.task("f").get("state") == "stopped")
            assert len(worker.events("f")) == 10_000
            worker.stop()
        else:
            worker.ended(0)
    worker.start()
    assert worker.bodies("f") == [f"line {number}" for number in range(10_000)]
    (journal,) = worker.eventually(lambda: worker.status["journals"]).values()
    assert journal["closed"] is False


def test_removed_flow_closes_its_journal_and_readded_flow_reads_on(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    """The new journal has another id, and knows how far the files were read."""
    log = tmp_path / "app.log"
    log.write_text("1\n2\n")
    worker.run(flow_text("f", tail(log)), flow_text("other", tcp()))
    worker.wait_for_events("f", 2)
    worker.configure(flow_text("other", tcp()))
    worker.eventually(lambda: "f/0" not in worker.status["tasks"])
    (old,) = worker.journals("f")
    said = worker.eventually(lambda: worker.status["journals"][old]["closed"] and worker.status)
    given = said["journals"][old]
    assert given == {"flow": "f", "term": given["term"], "closed": True, "end": 2}
    with log.open("a") as file:
        file.write("3\n")
    worker.run(flow_text("f", tail(log)), flow_text("other", tcp()))
    worker.wait_for_events("f", 3)
    assert sorted(worker.bodies("f")) == ["1", "2", "3"]
    worker.send(type="remove", journals=[old, "f.here.0.not-there"], flows=[])
    worker.eventually(lambda: old not in worker.status["journals"])
    assert not list((worker.data / "journals/0").glob(f"*{old}*"))
    worker.eventually(lambda: len(worker.journals("f")) == 1)


def test_an_open_journal_is_never_removed(worker: WorkerProcess) -> None:
    worker.run(flow_text("f", tcp()))
    (journal,) = worker.journals("f")
    worker.send(type="remove", journals=[journal], flows=[])
    with worker.connect("f") as connection:
        connection.sendall(b"x\n")
    worker.wait_for_events("f", 1)


def test_acks_trim_open_and_closed_journals(worker: WorkerProcess) -> None:
    lines = b"".join(os.urandom(500).hex().encode() + b"\n" for _ in range(4_000))
    worker.run(flow_text("f", tcp()))
    with worker.connect("f") as connection:
        connection.sendall(lines)
        worker.wait_for_events("f", 4_000)
        (journal,) = worker.journals("f")
        worker.send(type="acks", acks={journal: 4_000})
        worker.eventually(lambda: worker.journals("f")[journal].floor == 4_000)
        connection.sendall(lines)
        worker.wait_for_events("f", 8_000)
    worker.configure()
    worker.eventually(lambda: worker.status["journals"][journal]["closed"])
    worker.send(type="acks", acks={journal: 8_000, "f.here.0.not-there": 7})
    worker.eventually(lambda: worker.journals("f")[journal].floor == 8_000)


def test_acks_sent_right_after_the_start_are_not_lost(worker: WorkerProcess) -> None:
    """The node sends an ack once, while the journals are being opened."""
    flows = [flow_text(f"f{number}", "generate: {count: 10}") for number in range(10)]
    worker.run(*flows)
    for number in range(10):
        worker.wait_for_events(f"f{number}", 10)
    names = list(worker.client.positions())
    worker.stop()
    worker.start()
    worker.configure(*flows)
    worker.send(type="acks", acks=dict.fromkeys(names, 10))
    worker.eventually(lambda: {a.acked for a in worker.client.accounts().values()} == {10})


def test_a_damaged_journal_fails_its_task_and_is_not_replaced(worker: WorkerProcess) -> None:
    """A new journal in its place would hide the damage."""
    worker.run(flow_text("bad", tcp()), flow_text("good", tcp()))
    for flow in ("bad", "good"):
        with worker.connect(flow) as connection:
            connection.sendall(b"x\n" * 10)
        worker.wait_for_events(flow, 10)
    worker.stop()
    (segment,) = worker.data.glob("journals/0/bad.*/*.segment")
    damaged = bytearray(segment.read_bytes())
    damaged[-70] ^= 1
    segment.write_bytes(damaged)
    worker.start()
    worker.configure(flow_text("bad", tcp()), flow_text("good", tcp()))
    worker.eventually(lambda: worker.is_running("good"))
    worker.eventually(lambda: worker.task("bad").get("state") == "failed")
    assert str(segment.parent.name) in worker.task("bad")["error"]
    assert worker.journals("bad") == {}
    assert len(worker.events("good")) == 10
    damaged[-70] ^= 1
    segment.write_bytes(damaged)
    worker.eventually(lambda: worker.is_running("bad"))
    assert len(worker.events("bad")) == 10


def test_overlong_lines_are_cut_and_counted(worker: WorkerProcess) -> None:
    worker.run(flow_text("f", tcp(max_line_bytes=1000)))
    with worker.connect("f") as connection:
        for _ in range(100):
            connection.sendall(b"x" * 100_000)
        connection.sendall(b"\nshort\n")
    events = worker.wait_for_events("f", 2)
    assert [len(event["body"]) for event in events] == [1000, 5]
    assert dict(events[0]["attrs"])["truncated"] == "true"
    assert worker.counters("f")["truncated"] == 1


def test_a_burst_of_connections_is_accepted_and_costs_little_memory(worker: WorkerProcess) -> None:
    """A full backlog would make each sender wait for a second."""

    def rss_kib() -> int:
        lines = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    worker.run(flow_text("f", tcp()))
    with worker.connect("f") as connection:
        connection.sendall(b"x\n")
    worker.wait_for_events("f", 1)
    before = rss_kib()
    worker.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    connections = [worker.connect("f") for _ in range(500)]
    worker.process.send_signal(signal.SIGCONT)
    try:
        assert time.monotonic() - began < 30, "hundreds of them waited"
        connections[-1].sendall(b"x\n")
        worker.wait_for_events("f", 2)
        assert rss_kib() - before < 500 * 8
    finally:
        for connection in connections:
            connection.close()


class Writer(threading.Thread):
    """Appends numbered lines to a log and rotates it, by renaming it every so often."""

    def __init__(self, log: Path, lines: int) -> None:
        super().__init__(daemon=True)
        self.log = log
        self.total = lines
        self.written = 0

    def run(self) -> None:
        rotations = 0
        file = self.log.open("a")
        while self.written < self.total:
            for _ in range(50):
                file.write(f"line {self.written} {'x' * (self.written % 90)}\n")
                self.written += 1
            file.flush()
            time.sleep(0.005)
            if self.written % 2_000 == 0:
                file.close()
                rotations += 1
                self.log.rename(self.log.with_name(f"app.log.{rotations}"))
                file = self.log.open("a")
        file.close()


class Sender(threading.Thread):
    """Sends numbered messages; after a broken connection it goes on with the next number."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.sent = 0
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            try:
                with socket.create_connection(("127.0.0.1", self.port)) as connection:
                    while not self.stopping:
                        block = range(self.sent, self.sent + 100)
                        self.sent += 100
                        connection.sendall(b"".join(b"<13>message %d\n" % n for n in block))
                        time.sleep(0.002)
            except OSError:
                time.sleep(0.01)


def test_kill_9_loses_and_doubles_no_line_of_a_file(worker: WorkerProcess, tmp_path: Path) -> None:
    """Events that were safe before a kill are there after it, under the same number."""
    chance = random.Random(9)
    port = free_port()
    flow = flow_text("f", tcp(f"127.0.0.1:{port}"), tail(tmp_path / "app.log*", poll_seconds=0.01))
    writer, sender = Writer(tmp_path / "app.log", 10_000), Sender(port)
    worker.run(flow)
    writer.start()
    sender.start()
    kills = 0
    while writer.is_alive() or kills < 6:
        time.sleep(chance.uniform(0.05, 0.3))
        (before,) = worker.journals("f").values()
        seen = worker.bodies("f")[: before.safe]
        worker.kill()
        kills += 1
        worker.start()
        assert worker.bodies("f")[: before.safe] == seen
        worker.run(flow)
    sender.stopping = True
    sender.join()
    expected = [f"line {number} {'x' * (number % 90)}" for number in range(writer.total)]
    lines = worker.eventually(
        lambda: (
            found
            if len(found := [b for b in worker.bodies("f") if b.startswith("line")])
            >= len(expected)
            else None
        )
    )
    assert sorted(lines) == sorted(expected)
    messages = [body for body in worker.bodies("f") if not body.startswith("line")]
    assert len(messages) == len(set(messages)) > 0
    assert {message.removeprefix("<13>message ") for message in messages} <= {
        str(number) for number in range(sender.sent)
    }
    worker.stop()
