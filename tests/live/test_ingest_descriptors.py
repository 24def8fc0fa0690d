"""Few descriptors, many files and connections: every file is read, and neither takes the
descriptors that the journals and their readers need."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testkit.ingest_worker import WorkerProcess

DESCRIPTORS = 256
FILES = 300
CONNECTIONS = 600
LINES = 10
SOON_SECONDS = 10.0
MOST_LOG_LINES = 60


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    worker = WorkerProcess(tmp_path / "node")
    yield worker
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if worker.process.poll() is None:
        worker.kill()


def descriptors(worker: WorkerProcess) -> int:
    return len(list(Path(f"/proc/{worker.process.pid}/fd").iterdir()))


def is_heard(worker: WorkerProcess) -> bool:
    """Whether the worker takes a line: it refuses connections while closed ones still hold
    places."""
    with contextlib.suppress(OSError), worker.connect("senders") as sender:
        sender.sendall(b"one\n")
    time.sleep(0.1)
    return bool(worker.events("senders"))


def test_files_and_connections_beyond_the_limit_starve_no_reader(
    worker: WorkerProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker.stop()
    worker.start()  # whose log is captured
    resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(FILES):
        lines = "".join(f"{number} {line}\n" for line in range(LINES))
        (logs / f"{number}.log").write_text(lines)
    worker.run(
        'flow: senders\nsources:\n  - tcp: {listen: "127.0.0.1:0"}\nsinks:\n  - noop\n',
        f'flow: files\nsources:\n  - tail: {{paths: ["{logs}/*.log"]}}\nsinks:\n  - noop\n',
    )
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(worker.connect("senders"))
        began = time.monotonic()
        assert "files" in " ".join(worker.client.positions())
        assert time.monotonic() - began < SOON_SECONDS
        worker.wait_for_events("files", FILES * LINES)
        for number in range(0, FILES, 7):
            with (logs / f"{number}.log").open("a") as log:
                log.write("more\n")
        count = FILES * LINES + len(range(0, FILES, 7))
        worker.wait_for_events("files", count)
        assert descriptors(worker) < DESCRIPTORS
    worker.eventually(lambda: is_heard(worker))
    found = sorted(worker.bodies("files"))
    expected = [f"{number} {line}" for number in range(FILES) for line in range(LINES)]
    assert found == sorted(expected + ["more"] * len(range(0, FILES, 7)))
    assert 0 < len(capfd.readouterr().err.splitlines()) < MOST_LOG_LINES


def test_unread_bytes_of_a_held_source_are_counted(worker: WorkerProcess, tmp_path: Path) -> None:
    """No lag is reported while the source is read to its end."""
    log = tmp_path / "a.log"
    log.write_text("x" * 99 + "\n")
    worker.run(f"flow: f\nsources:\n  - tail: {{paths: [{log}]}}\nsinks:\n  - noop\n")
    worker.wait_for_events("f", 1)
    worker.eventually(lambda: worker.counters("f")["unread_bytes"] == 0)
    worker.send(
        type="configure",
        number=2,
        chokes={"f": 10.0},
        tasks=[
            {
                "flow": "f",
                "task": "0",
                "epoch": 1,
                "revision": 1,
                "spec": f"flow: f\nsources:\n  - tail: {{paths: [{log}]}}\nsinks:\n  - noop\n",
            }
        ],
    )
    worker.eventually(lambda: worker.status["answers"] == 2)
    with log.open("a") as file:
        file.write(("x" * 99 + "\n") * 3)
    worker.wait_for_events("f", 2)
    with log.open("a") as file:
        file.write(("x" * 99 + "\n") * 1000)
    worker.eventually(lambda: worker.counters("f")["unread_bytes"] == 100_000)
    counters = worker.counters("f")
    assert counters["held_by"] == "rate limit: 10 bytes a second"
    assert counters["held_seconds"] > 0
