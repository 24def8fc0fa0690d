"""Delivery by batch: although processes are killed and others use the table, every accepted event
is once in the database and at the receiver, or among the dead letters with its reason.

Lines of a growing file go into PostgreSQL and to a receiver over HTTP; both record the batch number
before the ack. Executors, collector, node, database and receiver are killed: the collector right
after its intent, while a foreign lock delays the write; an executor right after a COMMIT, before
the rest of the batch and its ack.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from flumeng.agent.standalone.embedded import free_port
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import UserError
from tests.live.chaos import Cluster, Watcher, chaos_seconds, chaos_seed, kill_at_random, numbers
from tests.live.own_server import need_own
from tests.live.receiver import taken
from tests.testkit.servers.postgres import RealPostgres
from tests.testkit.waiting import happens, wait_for

CHUNK, PACE_SECONDS = 200, 0.2
REFUSED = 1_000
"""The table refuses one of so many lines."""
LONG_KILLS = 4
COLLECTORS = 2
"""A flow that has ended three collectors within a quarter of an hour is set aside, so no more are
killed."""
FLOW_TEXT = """
flow: chaos
sources: [{{tail: {{paths: ["{logs}/app.log*"]}}}}]
delivery: exactly-once
batch: {{seconds: 0.3, events: 20000}}
sinks:
  - sql: {{url: "{url}", table: events, username: flumeng, password: "${{secret:database}}",
      sslmode: disable, timeout_seconds: 5}}
  - http: {{url: "{receiver}", idempotent: true, compression: zstd, request_bytes: 256 KiB}}
dead_letters:
  files: {{path: "{dead}"}}
"""
TABLE = f"""
CREATE TABLE events (journal text, seq bigint, ts timestamptz, host text, replayed boolean,
    attrs jsonb, body text CHECK (substring(body from 'file=(\\d+)')::int % {REFUSED} <> 7))
"""
LAST_WRITTEN = "SELECT max(written_at)::text FROM flumeng_batches"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'events'::regclass"


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealPostgres]:
    try:
        postgres = RealPostgres()
    except UserError as error:
        pytest.skip(str(error))
    postgres.start()
    monkeypatch.setenv("FLUMENG_SECRET_DATABASE", postgres.password)
    yield postgres
    postgres.close()


class Lines(threading.Thread):
    """Appends numbered lines to a file until it is stopped; ``count`` is their number."""

    def __init__(self, file: Path) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.stop = threading.Event()
        self._file = file

    def run(self) -> None:
        with self._file.open("ab", buffering=0) as file:
            while not self.stop.wait(PACE_SECONDS):
                texts = (f"file={n} {'y' * 80}\n" for n in range(self.count, self.count + CHUNK))
                file.write("".join(texts).encode())
                self.count += CHUNK


class ReceiverProcess:
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._command = [sys.executable, "-m", "tests.live.receiver", str(folder), str(self.port)]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self.process.stdout
        self.process.stdout.readline()

    def restart(self) -> None:
        self.kill()
        self.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Trouble:
    """``hits``: the number of kills at exactly that moment."""

    def __init__(self, cluster: Cluster, postgres: RealPostgres) -> None:
        self.hits = {"between intent and write": 0, "between write and ack": 0}
        self.moments = {
            "between intent and write": self.between_intent_and_write,
            "between write and ack": self.between_write_and_ack,
        }
        self._cluster = cluster
        self._postgres = postgres

    def between_intent_and_write(self) -> None:
        kind = "executor" if self.hits["between intent and write"] >= COLLECTORS else "collector"
        with self._postgres.connect() as stranger, stranger.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
            waits = happens(lambda: self._postgres.run(WAITING) != [(0,)], seconds=60)
            if waits and self._cluster.kill(kind):
                self.hits["between intent and write"] += 1
            cursor.execute("ROLLBACK")

    def between_write_and_ack(self) -> None:
        """Kill the executor after the row was written: the flow's later writes and its ack are
        lost."""
        before = self._postgres.run(LAST_WRITTEN)
        changed = happens(lambda: self._postgres.run(LAST_WRITTEN) != before, seconds=60)
        if changed and self._cluster.kill("executor"):
            self.hits["between write and ack"] += 1

    def database(self) -> None:
        self._postgres.kill()
        time.sleep(0.5)
        self._postgres.start()

    def stranger(self) -> None:
        row = "('stranger', 0, 'file=0')"
        self._postgres.run(f"INSERT INTO events (journal, seq, body) VALUES {row}")


@pytest.mark.long
def test_every_event_is_in_the_targets_once_or_a_dead_letter(
    postgres: RealPostgres, cluster: Cluster, tmp_path: Path
) -> None:
    need_own(postgres)
    logs, dead, long = tmp_path / "logs", tmp_path / "dead", chaos_seconds()
    logs.mkdir()
    receiver = ReceiverProcess(tmp_path / "taken")
    postgres.run(TABLE)
    store = connect(cluster.hosts)
    url = f"http://127.0.0.1:{receiver.port}/"
    text = FLOW_TEXT.format(logs=logs, url=postgres.url, receiver=url, dead=dead)
    apply_flow(Operator(store, "test", "", 0.0), text)
    writer, trouble = Lines(logs / "app.log"), Trouble(cluster, postgres)
    writer.start()
    wait_for(lambda: postgres.run("SELECT 1 FROM events LIMIT 1"), "no event is in the table")
    others = {
        "before": trouble.between_intent_and_write,
        "after": trouble.between_write_and_ack,
        "database": trouble.database,
        "receiver": receiver.restart,
        "stranger": trouble.stranger,
    }
    kill_at_random(
        cluster,
        random.Random(chaos_seed()),
        ("executor", "node") if long else (),
        others,
        times=LONG_KILLS if long else 1,
        until=time.monotonic() + long,
    )
    missed = [hit for name, hit in trouble.moments.items() if not trouble.hits[name]]
    for hit in missed:
        hit()
    writer.stop.set()
    writer.join()
    Watcher(store).settle(events=writer.count)
    receiver.kill()
    store.close()

    found = postgres.run("SELECT journal, seq, body FROM events WHERE journal <> 'stranger'")
    ids = {(journal, seq) for journal, seq, _ in found}
    assert len(ids) == len(found), "an event is in the table twice"
    letters = ds.dataset(dead, format="parquet").to_table()
    refused = sorted(numbers(letters["body"], "file"))
    assert refused == list(range(7, writer.count, REFUSED))
    assert all("check constraint" in why for why in letters["dead_reason"].to_pylist())
    written = numbers([body for *_, body in found], "file")
    assert sorted(written + refused) == list(range(writer.count))
    sent = [event["body"] for event in taken(tmp_path / "taken")]
    assert sorted(numbers(sent, "file")) == list(range(writer.count))
    assert all(trouble.hits.values()), trouble.hits
