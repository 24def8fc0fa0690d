"""A source that is held up reports its cause, gets to know its limit soon, and goes on later."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from flumeng.connectors.http.app import HELD_SECONDS
from tests.testkit.ingest_worker import WorkerProcess

SOON_SECONDS = 10.0


def flow(name: str, source: str) -> str:
    return (
        f"flow: {name}\nsources:\n  - {source}\njournal: {{max_bytes: 16 MiB}}\nsinks:\n  - noop\n"
    )


def post(worker: WorkerProcess, name: str, body: bytes) -> tuple[int, str]:
    url = f"http://{worker.task(name)['listen'][0]}/"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def held(worker: WorkerProcess, name: str) -> dict[str, Any]:
    counters = worker.counters(name)
    return counters if counters["held_by"] else {}


def fill(worker: WorkerProcess, name: str) -> tuple[int, str]:
    """Post incompressible lines until they are refused; returns the refusal."""
    body = b"".join(
        b"%032x" % (n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) for n in range(32768)
    )
    lines = b"\n".join(body[at : at + 1024] for at in range(0, len(body), 1024))
    for _ in range(100):
        status, error = post(worker, name, lines)
        if status != 200:
            return status, error
    raise AssertionError("it takes more than it may hold")


def test_http_before_a_full_journal_answers_429_soon_and_then_at_once(
    worker: WorkerProcess,
) -> None:
    worker.run(flow("f", 'http: {listen: "127.0.0.1:0"}'))
    status, error = fill(worker, "f")
    assert (status, error.partition(":")[0]) == (429, "journal full")
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert post(worker, "f", b"one\n")[0] == 429
        took.append(time.monotonic() - began)
    assert min(took) < HELD_SECONDS
    counters = worker.eventually(lambda: held(worker, "f"))
    assert counters["held_by"].startswith("journal full: 1")
    assert counters["held_by"].endswith(" of 16.0 MiB")
    time.sleep(1.0)
    assert held(worker, "f")["held_seconds"] > 1.0
    ((journal, position),) = worker.journals("f").items()
    worker.send(type="acks", acks={journal: position.safe})
    worker.eventually(lambda: post(worker, "f", b"two\n")[0] == 200)
    worker.eventually(lambda: not held(worker, "f"))
    assert worker.counters("f")["held_seconds_total"] > 1.0


def test_flow_without_a_reader_holds_up_no_other(worker: WorkerProcess, tmp_path: Path) -> None:
    """One is full and says so; the other's events are durable at once."""
    log = tmp_path / "log"
    log.write_text("")
    worker.run(
        flow("full", 'http: {listen: "127.0.0.1:0"}'),
        flow("other", f"tail: {{paths: [{log}], poll_seconds: 0.1}}"),
    )
    assert fill(worker, "full")[0] == 429
    began = time.monotonic()
    log.write_text("one\ntwo\n")
    assert [event["body"] for event in worker.wait_for_events("other", 2)] == [b"one", b"two"]
    assert time.monotonic() - began < SOON_SECONDS
    assert worker.counters("other")["held_by"] == ""
