"""A real server over HTTP: the events of a split that arrive there, for each kind of answer."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flumeng.agent.standalone.embedded import free_port
from flumeng.connectors.api.sink import BatchId
from flumeng.connectors.http.sink import HttpSink, SendSplit
from flumeng.connectors.http.sink_options import Http
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.receiver import Receiver, Reply, taken
from tests.live.test_sink_postgres import Letters, events, refuse_nothing
from tests.testkit.collector import TASK
from tests.testkit.daemons import freeze

FIRST = BatchId("series", 1)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(tmp_path / "taken")
    receiver.start()
    yield receiver
    receiver.shutdown()
    receiver.server_close()


def sink(url: str, **options: Any) -> SendSplit:
    given = Http(url, **options)
    endpoint = vars(HttpSink(given, TASK))["_endpoint"]
    batch = FIRST if given.idempotent else None
    return SendSplit(given, endpoint, batch, "sinks[0].http", patience_seconds=2.0)


def send(stage: SendSplit, *parts: pa.RecordBatch, refuse: Any = refuse_nothing) -> int:
    (row,) = stage(iter(parts), refuse)
    return int(row.column("events")[0].as_py())


def seqs(found: Sequence[dict[str, Any]]) -> list[int]:
    return sorted(event["seq"] for event in found)


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("format", ["ndjson", "json"])
def test_events_are_sent_as_json(receiver: Receiver, format: str, compression: str) -> None:
    stage = sink(receiver.url, format=format, compression=compression, method="PUT")
    assert send(stage, events(0, 3), events(3, 2)) == 5
    assert len(receiver.keys) == 1
    found = taken(receiver.folder)
    assert seqs(found) == [0, 1, 2, 3, 4]
    assert found[0] == {
        "body": "line 0",
        "ts": "2026-11-18T11:06:40.000000Z",
        "host": "192.0.2.1",
        "attrs": {"k": "v"},
        "journal": "web.n1.0.00000000",
        "seq": 0,
        "replayed": False,
    }


def test_repeated_batch_makes_the_same_requests_for_any_cut_of_its_events(
    receiver: Receiver,
) -> None:
    stage = sink(receiver.url, idempotent=True, request_bytes=2000)
    assert send(stage, events(0, 100)) == 100
    first = list(receiver.keys)
    assert len(set(first)) == len(first) > 5
    assert send(stage, *(events(n, 10) for n in range(0, 100, 10))) == 100
    assert receiver.keys == first * 2
    assert seqs(taken(receiver.folder)) == list(range(100))
    assert all(file.stat().st_size <= 2000 for file in receiver.folder.iterdir())


def test_temporary_errors_are_retried(receiver: Receiver) -> None:
    stage = replace(sink(receiver.url), patience_seconds=20.0)
    began = time.monotonic()
    soon = formatdate(time.time() + 1, usegmt=True)
    errors = [
        [Reply(503), Reply(429, (("Retry-After", "1"),))],
        [Reply(408), Reply(500, (("Retry-After", soon),))],
        [Reply(lost=True), Reply(409)],
    ]
    for number, receiver.replies in enumerate(errors, 1):
        assert send(stage, events(3 * number, 3)) == 3
        assert len(receiver.keys) == 3 * number
        assert len(set(receiver.keys)) == number
    assert time.monotonic() - began > 1
    assert seqs(taken(receiver.folder)) == list(range(3, 12))


@pytest.mark.parametrize(
    "reply", [Reply(503), Reply(429, (("Retry-After", "3600"),)), Reply(500, body=b"no disk")]
)
def test_unavailable_receiver_fails_the_batch_as_unavailable(
    receiver: Receiver, reply: Reply
) -> None:
    receiver.replies = [reply] * 100
    with pytest.raises(UnavailableError, match=f"HTTP {reply.status}"):
        send(sink(receiver.url), events(0, 3))
    assert taken(receiver.folder) == []


def test_permanently_refused_events_become_dead_letters(receiver: Receiver) -> None:
    receiver.replies = [Reply(200), Reply(422, body=b"no\n such   field")]
    letters = Letters()
    stage = sink(receiver.url, request_bytes=1024)
    assert send(stage, events(0, 20), refuse=letters) == 20
    assert len(letters.found) > 3
    assert seqs(taken(receiver.folder)) == [n for n in range(20) if n not in letters.found]
    assert set(letters.found.values()) == {"HTTP 422 Unprocessable Entity: no such field"}


def test_too_large_request_is_halved(receiver: Receiver) -> None:
    receiver.most_bytes = 2000
    letters = Letters()
    large = events(30, 1, {"body": pa.array([b"x" * 3000])})
    assert send(sink(receiver.url), events(0, 30), large, refuse=letters) == 31
    assert seqs(taken(receiver.folder)) == list(range(30))
    assert letters.found == {30: "HTTP 413 Request Entity Too Large"}


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 415])
def test_permanent_http_error_stops_the_flow_and_loses_no_event(
    receiver: Receiver, status: int
) -> None:
    receiver.replies = [Reply(status, (("Location", "/elsewhere"),))]
    with pytest.raises(UserError, match=f"POST http://127.0.0.1:.*/events: HTTP {status} "):
        send(sink(f"{receiver.url}?token=never"), events(0, 3))
    assert len(receiver.keys) == 1


def test_secret_is_sent_in_its_header_and_shown_nowhere(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_HOOKS", "t0ken-of-hooks")
    options = Http(receiver.url, headers={"Authorization": "Bearer ${secret:hooks}", "X-A": "b"})
    assert "t0ken" not in repr(vars(HttpSink(options, TASK)))
    send(sink(receiver.url, headers=options.headers), events(0, 1))
    (headers,) = receiver.headers
    assert (headers["Authorization"], headers["X-A"]) == ("Bearer t0ken-of-hooks", "b")
    assert headers["Content-Type"] == "application/x-ndjson"


def test_receiver_that_is_frozen_killed_and_restarted_loses_nothing(tmp_path: Path) -> None:
    folder, port = tmp_path / "taken", free_port()
    folder.mkdir()
    command = [sys.executable, "-m", "tests.live.receiver", str(folder), str(port)]

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        return process

    process = start()
    stage = sink(f"http://127.0.0.1:{port}/", idempotent=True, timeout_seconds=0.5)
    assert send(stage, events(0, 5)) == 5
    freeze(process.pid)
    with pytest.raises(UnavailableError, match="no answer"):
        send(stage, events(0, 5), events(5, 5))
    process.kill()
    process.wait()
    with pytest.raises(UnavailableError, match="no answer"):
        send(stage, events(0, 5))
    process = start()
    assert send(stage, events(0, 5)) == 5
    assert seqs(taken(folder)) == [0, 1, 2, 3, 4]
    process.kill()
    process.wait()
