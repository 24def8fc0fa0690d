"""The losses and survivals of each durability, with real workers that are killed: events come over
TCP, and the safe position of the journal's server is the one that the worker would acknowledge."""

from __future__ import annotations

import base64
import random
import threading
from pathlib import Path

import pytest

from flumeng.journal.serving.account import Account
from tests.testkit.ingest_worker import WorkerProcess, flow_text

LINES = 2000


def flow(durability: str, *sources: str, more: str = "") -> str:
    text = flow_text("f", *(sources or ('tcp: {listen: "127.0.0.1:0"}',)))
    return f"{text}durability: {durability}\n{more}"


def send(worker: WorkerProcess, first: int, count: int) -> None:
    with worker.connect("f") as connection:
        connection.sendall(b"".join(b"line %d\n" % n for n in range(first, first + count)))


def lines(first: int, count: int) -> list[str]:
    return [f"line {n}" for n in range(first, first + count)]


def accounts(worker: WorkerProcess) -> dict[str, Account]:
    return worker.client.accounts()


@pytest.mark.parametrize("durability", ["disk", "spill"])
def test_safe_events_survive_a_kill(worker: WorkerProcess, durability: str) -> None:
    worker.run(flow(durability))
    (name,) = worker.journals("f")
    assert accounts(worker)[name].durability == durability
    for round_ in range(3):
        send(worker, round_ * LINES, LINES)
        worker.wait_for_events("f", (round_ + 1) * LINES)
        worker.kill()
        worker.start()
        worker.run(flow(durability))
    assert list(worker.journals("f")) == [name], "the journal goes on"
    assert worker.bodies("f") == lines(0, 3 * LINES)


def test_memory_durability_loses_and_counts_events_of_a_killed_worker(
    worker: WorkerProcess,
) -> None:
    worker.run(flow("memory"))
    send(worker, 0, LINES)
    worker.wait_for_events("f", LINES)
    (name,) = worker.journals("f")
    worker.send(type="acks", acks={name: 700})
    worker.eventually(lambda: accounts(worker)[name].acked == 700)
    worker.kill()
    worker.start()
    worker.run(flow("memory"))
    gone = accounts(worker)[name]
    assert (gone.acked, gone.safe, gone.lost, gone.closed) == (700, LINES, LINES - 700, True)
    assert gone.waits_at is None, "acks may pass over what is lost"
    (fresh,) = set(worker.journals("f")) - {name}
    send(worker, LINES, 10)
    worker.eventually(lambda: worker.journals("f")[fresh].safe == 10)
    assert worker.bodies("f") == lines(LINES, 10), "an old ack speaks of the old journal only"
    worker.send(type="remove", journals=[name], flows=[])
    worker.eventually(lambda: list(worker.journals("f")) == [fresh])


def test_memory_durability_survives_an_orderly_stop(worker: WorkerProcess) -> None:
    worker.run(flow("memory"))
    send(worker, 0, LINES)
    worker.wait_for_events("f", LINES)
    worker.stop()
    worker.start()
    assert worker.bodies("f") == lines(0, LINES)
    (account,) = accounts(worker).values()
    assert (account.lost, account.closed, account.durability) == (0, True, "disk")


def test_tail_reads_again_the_events_lost_with_memory(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    log = tmp_path / "app.log"
    tail = f'tail: {{paths: ["{log}"], poll_seconds: 0.01}}'
    log.write_text("".join(f"{line}\n" for line in lines(0, 50)))
    worker.run(flow("memory", tail))
    worker.wait_for_events("f", 50)
    (name,) = worker.journals("f")
    worker.send(type="acks", acks={name: 50})
    worker.eventually(lambda: accounts(worker)[name].acked == 50)
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines(50, 50))
    worker.eventually(lambda: worker.journals("f")[name].safe == 100)
    worker.kill()
    worker.start()
    worker.run(flow("memory", tail))
    worker.eventually(lambda: worker.bodies("f") == lines(50, 50))


def test_changed_durability_takes_another_journal_and_loses_nothing(worker: WorkerProcess) -> None:
    for revision, durability in enumerate(["memory", "disk", "spill"], 1):
        worker.run(flow(durability), revision=revision)
        send(worker, revision * LINES, LINES)
        worker.wait_for_events("f", revision * LINES)
    assert sorted(worker.bodies("f")) == sorted(lines(LINES, 3 * LINES))
    worker.eventually(lambda: sum(not a.closed for a in accounts(worker).values()) == 1)
    worker.kill()
    worker.start()
    assert sorted(worker.bodies("f")) == sorted(lines(2 * LINES, 2 * LINES))
    assert sum(account.lost for account in accounts(worker).values()) == LINES


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_full_journal_makes_senders_wait_and_loses_nothing(
    worker: WorkerProcess, durability: str
) -> None:
    """From the socket on: each event is there once when all is acked."""
    mark = 16 << 20
    worker.run(flow(durability, more="journal: {max_bytes: 16 MiB}\n"))
    (name,) = worker.journals("f")
    rng = random.Random(0)
    count, width = 50_000, 1200  # text that does not shrink by much
    block = base64.b64encode(rng.randbytes(width * 1000))

    def push() -> None:
        with worker.connect("f") as connection:
            for n in range(count):
                at = n % 1000 * width
                connection.sendall(b"%d " % n + block[at : at + width] + b"\n")

    sender = threading.Thread(target=push, daemon=True)
    sender.start()
    worker.eventually(lambda: accounts(worker)[name].bytes > mark * 3 // 4)
    sender.join(1.0)
    assert sender.is_alive(), "it was not held up"
    held = accounts(worker)[name]
    assert held.bytes <= held.max_bytes == mark
    seen: list[int] = []
    while len(seen) < count:
        position = worker.journals("f")[name]
        for batch in worker.client.read(name, len(seen), position.safe):
            seen += [int(body.as_py().partition(b" ")[0]) for body in batch.column("body")]
        worker.send(type="acks", acks={name: len(seen)})
    sender.join(60)
    assert not sender.is_alive()
    assert seen == list(range(count))
