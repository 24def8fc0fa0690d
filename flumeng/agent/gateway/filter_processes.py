"""Processes that run filters for a gateway: they have neither its certificates nor its sessions.

They start when another site reads filtered events, and serve one block of events at a time. One
that fails or hangs is killed; the reader tries again.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pyarrow as pa

from flumeng.agent.node.filter_protocol import MODULE, Answer, Request
from flumeng.journal.serving.wire import ERROR_KINDS
from flumeng.platform.errors import CorruptError, UnavailableError
from flumeng.platform.processes import PYTHON
from flumeng.platform.security.roles import DIRECTORY

START_SECONDS = 120.0
ANSWER_SECONDS = 20.0
"""The longest that a process takes for a block: readers wait 30 s."""
PLACE_SECONDS = 8.0
"""The longest that a request waits for a free process."""
CORES_EACH = 2


def most_processes() -> int:
    return max(1, (os.cpu_count() or 1) // CORES_EACH)


class FilterProcesses:
    """At most ``most`` processes at once. Thread-safe. Calls raise UnavailableError, and errors of
    the filters: UserError, CorruptError."""

    def __init__(self, policy: Path | None = None, most: int | None = None) -> None:
        self._policy = policy
        self._places = threading.Semaphore(most or most_processes())
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._unused: list[_Process] = []
        """Idle processes that have run nothing since the last ``end_unused``."""
        self._closed = False

    def schema(self, text: str) -> bytes:
        """Return the columns behind the filters of a flow with this text, in Arrow's format."""
        return self._ask(Request(text))

    def run(self, text: str, events: pa.RecordBatch) -> bytes:
        """Filter events in READ_SCHEMA; return them as in a chunk of ``filtered_wire``."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, events.schema) as writer:
            writer.write_batch(events)
        return self._ask(Request(text, sink.getvalue().to_pybytes()))

    def end_unused(self) -> None:
        """End the processes that have run nothing since the last call. Called every minute."""
        with self._lock:
            unused = self._unused
            self._idle = [process for process in self._idle if process not in unused]
            self._unused = [*self._idle]
        for process in unused:
            process.end()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _ask(self, request: Request) -> bytes:
        if not self._places.acquire(timeout=PLACE_SECONDS):
            raise UnavailableError("all filter processes of the gateway are busy")
        try:
            with self._lock:
                process = self._idle.pop() if self._idle else None
                self._unused = [each for each in self._unused if each is not process]
            process = process or _Process(self._policy)
            try:
                answer = process.ask(request)
            except BaseException:
                process.end()
                raise
            with self._lock:
                keeps = not self._closed
                if keeps:
                    self._idle.append(process)
            if not keeps:
                process.end()
        finally:
            self._places.release()
        if answer.kind:
            raise dict(ERROR_KINDS).get(answer.kind, CorruptError)(answer.message)
        return answer.data


class _Process:
    def __init__(self, policy: Path | None) -> None:
        ours, theirs = socket.socketpair()
        command = [*PYTHON, MODULE, "--socket", str(theirs.fileno())]
        command += ["--policy", str(policy)] if policy else []
        environment = {name: text for name, text in os.environ.items() if name != DIRECTORY}
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment
                )
        except OSError as error:
            ours.close()
            raise UnavailableError(f"the gateway cannot start a filter process: {error}") from error
        self._socket = Connection(ours.detach())
        self._seconds = START_SECONDS

    def ask(self, request: Request) -> Answer:
        try:
            self._socket.send_bytes(msgspec.msgpack.encode(request))
            if not self._socket.poll(self._seconds):
                raise UnavailableError(
                    f"the flow's filters did not process a block of events in {self._seconds:g} s"
                )
            self._seconds = ANSWER_SECONDS
            return msgspec.msgpack.decode(self._socket.recv_bytes(), type=Answer)
        except (EOFError, OSError) as error:
            raise UnavailableError("the process that runs the flow's filters has died") from error

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()
