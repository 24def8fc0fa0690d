"""Runs a command at a due time; its lines are taken if it succeeds. A guard (``platform.guard``)
ends the command and its children on timeout, excess output, close, or end of this process."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import IO

import pyarrow as pa

from flumeng.connectors.exec.options import Exec
from flumeng.connectors.polls.poll import Answer
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.guarded_commands import GUARD, STOP_SECONDS, environment
from flumeng.platform.scrubbing import scrub

DUE, SINCE = "FLUMENG_DUE", "FLUMENG_SINCE"
MOST_BYTES = 32 * 2**20
STDERR_BYTES = 2048
READ_BYTES = 1 << 16
LAST_OUTPUT_SECONDS = 1.0
"""Time limit for reading from children that keep the output open after the command's end."""


class ExecPoll:
    """Implements ``Poll`` by a command. The state is the latest due time whose lines were taken."""

    def __init__(self, options: Exec) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._closed = False
        self._run: _Run | None = None

    def ask(self, state: str, due: datetime) -> Answer:
        """Return the command's lines for ``due``. FLUMENG_SINCE <= ``due``, in late retries too.
        Raises UserError if the command fails, CorruptError for an invalid ``state``."""
        taken = _moment(state) if state else None
        due_times = {DUE: due.isoformat()} | ({SINCE: min(taken, due).isoformat()} if taken else {})
        with self._started(environment() | due_times) as run:
            run.read(self._options.timeout_seconds)
        if self._closed:
            raise UnavailableError("the poll was closed")
        program = self._options.command[0]
        if run.problem:
            raise UserError(f"{program} {run.problem}{run.stderr_end}")
        if run.status:
            raise UserError(f"{program} ended with status {run.status}{run.stderr_end}")
        latest = max(taken or due, due).isoformat()
        return Answer(_lines(run.printed, self._options.max_line_bytes), latest)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._run is not None:
                self._run.end()

    @contextmanager
    def _started(self, env: dict[str, str]) -> Iterator[_Run]:
        with self._lock:
            if self._closed:
                raise UnavailableError("the poll was closed")
            run = self._run = _Run(self._options.command, env)
        try:
            yield run
        finally:
            with self._lock:
                self._run = None
                run.close()


class _Run:
    """One run of the command; the command has ended when ``read`` returns."""

    def __init__(self, command: tuple[str, ...], env: dict[str, str]) -> None:
        self._guard = subprocess.Popen(
            [*GUARD, *command],
            cwd="/",
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.printed = bytearray()
        self._stderr = bytearray()
        self.problem = ""
        self.status = 0

    @property
    def stderr_end(self) -> str:
        """A colon and the last part of standard error; empty when nothing was printed there."""
        text = " ".join(scrub(self._stderr.decode(errors="replace")).split())
        return f": {text}" if text else ""

    def read(self, seconds: float) -> None:
        """Read the output until the command ends; end the command after ``seconds``."""
        exited = os.pidfd_open(self._guard.pid)
        try:
            self._read(exited, seconds)
        finally:
            os.close(exited)
            self._kill()
            self.status = self._guard.wait()

    def _read(self, exited: int, seconds: float) -> None:
        deadline, ending = time.monotonic() + seconds, False
        with selectors.DefaultSelector() as waiting:
            for pipe in (self._guard.stdout, self._guard.stderr):
                waiting.register(_readable(pipe), selectors.EVENT_READ, self._take)
            waiting.register(exited, selectors.EVENT_READ)
            while waiting.get_map():
                now = time.monotonic()
                if now >= deadline and ending:
                    return
                if now >= deadline:
                    self.problem = f"did not end within {seconds:g} s"
                if self.problem and not ending:
                    deadline, ending = now + STOP_SECONDS, True
                    self.end()
                for key, _ in waiting.select(max(0.0, deadline - now)):
                    if key.data is None:
                        deadline, ending = time.monotonic() + LAST_OUTPUT_SECONDS, True
                        self._kill()
                    elif key.data(key.fd):
                        continue
                    waiting.unregister(key.fileobj)

    def end(self) -> None:
        lifeline = self._guard.stdin
        assert lifeline is not None
        lifeline.close()

    def close(self) -> None:
        for pipe in (self._guard.stdin, self._guard.stdout, self._guard.stderr):
            if pipe is not None:
                pipe.close()

    def _take(self, fd: int) -> bool:
        """Read one part of the output; return False at its end."""
        content = os.read(fd, READ_BYTES)
        if fd == _readable(self._guard.stderr).fileno():
            self._stderr += content
            del self._stderr[:-STDERR_BYTES]
        elif not self.problem:
            self.printed += content
            if len(self.printed) > MOST_BYTES:
                self.problem = f"printed more than {MOST_BYTES // 2**20} MiB"
        return bool(content)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)


def _moment(state: str) -> datetime:
    try:
        return datetime.fromisoformat(state).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise CorruptError(
            "exec: the stored state of the poll is not a time. If the flow polled another source "
            "before, undo that change, or make a new flow for the command"
        ) from error


def _readable(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _lines(printed: bytearray, most: int) -> pa.BinaryArray:
    lines = bytes(printed).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return pa.array([line.removesuffix(b"\r")[:most] for line in lines], pa.binary())
