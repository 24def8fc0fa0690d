"""A real worker process, driven as a node drives it, and a tailer by itself; for tests, benches."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from flumeng.agent.ingest import batch
from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.connectors.tail.descriptors import Descriptors
from flumeng.connectors.tail.options import Tail
from flumeng.connectors.tail.tailer import QUIET_SECONDS, Tailer
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.client import JournalClient
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for


class WorkerProcess:
    """One data directory and any number of processes after each other. ``arguments`` are further
    arguments of the command line."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self.arguments = arguments
        self.ready: dict[str, Any] = {}
        self.status: dict[str, Any] = {"tasks": {}, "journals": {}}
        self.statuses: list[dict[str, Any]] = []
        self.alive = 0
        self.awaited: list[str] = []
        self.proposals: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.start()

    def start(self) -> None:
        """A new process, and wait until it serves."""
        command = [sys.executable, "-m", "flumeng.agent.ingest", "--data", str(self.data)]
        self.process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--node", "here", *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.ready = {}
        self.status = {"tasks": {}, "journals": {}}
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        self.client = JournalClient(self.eventually(lambda: self.ready.get("address")))

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if message["type"] == "ready":
                self.ready = message
            elif message["type"] == "alive":
                self.alive += 1
            elif message["type"] == "awaits":
                self.awaited = message["journals"]
            elif message["type"] == "proposal":
                self.proposals.put(message)
            else:
                self.status = message
                self.statuses.append(message)

    def eventually(self, ask: Callable[[], Any]) -> Any:
        """The first answer that is true; fails when the worker ends."""

        def answer() -> Any:
            assert self.process.poll() is None, "the worker has ended"
            return ask()

        return wait_for(answer, lambda: f"status {self.status}", pause_seconds=0.01)

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def configure(self, *flows: str, revision: int = 1, epoch: int = 1) -> None:
        self.send(
            type="configure",
            number=1,
            tasks=[
                {
                    "flow": flow.split()[1],
                    "task": "0",
                    "epoch": epoch,
                    "revision": revision,
                    "spec": flow,
                }
                for flow in flows
            ],
        )

    def run(self, *flows: str, revision: int = 1) -> None:
        """Configure and wait until everything runs."""
        self.configure(*flows, revision=revision)
        for flow in flows:
            self.eventually(partial(self.is_running, flow.split()[1], revision))

    def task(self, flow: str) -> dict[str, Any]:
        found: dict[str, Any] = self.status["tasks"].get(f"{flow}/0", {})
        return found

    def is_running(self, flow: str, revision: int = 1) -> bool:
        task = self.task(flow)
        return task.get("state") == "running" and task["revision"] == revision

    def connect(self, flow: str, source: int = 0) -> socket.socket:
        host, _, port = self.task(flow)["listen"][source].rpartition(":")
        return socket.create_connection((host, int(port)))

    def journals(self, flow: str) -> dict[str, Position]:
        return {j: p for j, p in self.client.positions().items() if j.startswith(f"{flow}.")}

    def events(self, flow: str) -> list[dict[str, Any]]:
        return [event for batch in self._batches(flow) for event in batch.to_pylist()]

    def _batches(self, flow: str) -> Iterator[pa.RecordBatch]:
        for journal, position in sorted(self.journals(flow).items()):
            yield from self.client.read(journal, position.floor, position.safe)

    def bodies(self, flow: str) -> list[str]:
        return [
            body.decode() for batch in self._batches(flow) for body in batch["body"].to_pylist()
        ]

    def counters(self, flow: str) -> dict[str, Any]:
        """The counters of the flow's only source."""
        (counted,) = [row for row in self.client.counters() if row["flow"] == flow]
        return counted

    def wait_for_events(self, flow: str, count: int) -> list[dict[str, Any]]:
        self.eventually(lambda: sum(p.safe for p in self.journals(flow).values()) >= count)
        return self.events(flow)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.ended()

    def stop(self) -> None:
        """Stop it as a node does, and wait for its end."""
        self.send(type="stop")
        self.ended(0)

    def ended(self, code: int | None = None) -> None:
        """Wait for its end."""
        ended = self.process.wait(timeout=PATIENCE_SECONDS)
        self._reader.join()
        self.client.close()
        assert code is None or ended == code


def flow_text(name: str, *sources: str) -> str:
    """A flow of these sources, each a line of YAML, with a sink that writes nothing."""
    listed = "".join(f"  - {source}\n" for source in sources)
    return f"flow: {name}\nsources:\n{listed}sinks:\n  - noop\n"


class Follower:
    """A tailer with a journal that keeps committed and noted state and loses the rest in a crash.

    Nothing is written to disk; time passes by ``poll``.
    """

    def __init__(
        self, *paths: Path, descriptors: Descriptors | None = None, **options: Any
    ) -> None:
        self._descriptors = descriptors
        self.options = Tail(paths=tuple(map(str, paths)), **options)
        self.events: list[dict[str, Any]] = []
        self.state: dict[str, object] = {}
        self.noted: dict[str, object] = {}
        self.now = 0.0
        self.truncated = 0
        self.submitted: list[ReceivedBlock] = []
        self.tailer = self._start()

    def _start(self) -> Tailer:
        self._note({})
        return Tailer(
            self.options,
            "me",
            {**self.noted, **self.state},
            clock_us=lambda: 7,
            timer=lambda: 0.0,
            note=self._note,
            descriptors=self._descriptors,
        )

    def _note(self, changes: Mapping[str, object]) -> None:
        noted = {**self.noted, **changes}
        self.noted = {k: v for k, v in noted.items() if v is not None and k not in self.state}

    def watch(self, seconds: float = 10.0) -> None:
        """Look for files as while the flow is held."""
        self.now += seconds
        self.tailer.watch(self.now)

    def poll(self, seconds: float = 0.1) -> int:
        self.now += seconds
        blocks = self.tailer.poll(self.now)
        self.submitted += blocks
        return len(blocks)

    def commit(self, blocks: int | None = None) -> None:
        """Make the oldest submitted blocks durable, as the commit thread would."""
        blocks = len(self.submitted) if blocks is None else blocks
        durable, self.submitted = self.submitted[:blocks], self.submitted[blocks:]
        for frame, state in batch.build(durable, self._count):
            self.events += frame.to_pylist()
            for key, value in state.items():
                self.state[key] = value
                if value is None:
                    del self.state[key]

    def _count(self, found: batch.Counts) -> None:
        self.truncated += found.truncated

    def settle(self, seconds: float = 0.1) -> list[str]:
        """Poll until nothing is new; all lines so far."""
        while self.poll(seconds):
            pass
        self.commit()
        return self.lines

    def finish(self) -> list[str]:
        """Poll until lines and files are read or given up that wait for a while."""
        for _ in range(4):
            self.settle(QUIET_SECONDS)
        return self.lines

    def crash(self, *paths: Path) -> None:
        """Lose uncommitted state and restart; ``paths`` are those of a changed spec."""
        self.submitted.clear()
        self.tailer.close()
        if paths:
            self.options = Tail(paths=tuple(map(str, paths)), max_line_bytes=1000)
        self.tailer = self._start()

    @property
    def lines(self) -> list[str]:
        return [event["body"].decode() for event in self.events]

    def attrs(self, row: int) -> dict[str, str]:
        return dict(self.events[row]["attrs"])


def write(path: Path, text: str) -> None:
    """Append to a log."""
    with path.open("a") as file:
        file.write(text)


def copy_and_truncate(log: Path, number: int = 1) -> Path:
    """Copy and truncate as logrotate does: older copies are numbered on first."""
    newest = log.with_name(f"{log.name}.{number}")
    if newest.exists():
        newest.rename(log.with_name(f"{log.name}.{number + 1}"))
    shutil.copyfile(log, newest)
    os.truncate(log, 0)
    return newest


def pread_but_of(path: Path) -> Callable[[int, int, int], bytes]:
    """``os.pread`` that fails on that file."""
    pread, bad = os.pread, path.stat().st_ino

    def read(fd: int, size: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, offset)

    return read
