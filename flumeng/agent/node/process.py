"""A child process of the node and its pipes."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from flumeng.agent.node.events import Ended, Event, Reported
from flumeng.agent.node.protocol import Message, MessageError, encode, from_child

log = logging.getLogger(__name__)

LINE_BYTES = 64 << 20
"""Longest message; the status of 100,000 journals has 15 MB."""

LAST_WORDS_SECONDS = 1.0
"""How long the output of an ended child is read while another process holds its pipe open."""


class ChildProcess:
    """A child process. ``hear`` gets each message and finally one Ended, in order, in other
    threads. The child has its own session, so that Ctrl-C does not end it; after its end or kill
    all processes of that session are killed. It stops when the node dies, since its standard input
    ends. Raises OSError or RuntimeError when no process or thread can be started."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        hear: Callable[[Event], None],
        descriptors: Collection[int] = (),
    ) -> None:
        self._name = name
        self._hear = hear
        self._has_ended = False
        self._hearing = threading.Lock()
        self._reaping = threading.Lock()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=descriptors,
        )
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        reader = threading.Thread(target=self._read, name=f"{name}-reader", daemon=True)
        writer = threading.Thread(target=self._write, name=f"{name}-writer", daemon=True)
        follower = threading.Thread(target=self._follow, args=[reader], name=name, daemon=True)
        try:
            for thread in (reader, writer, follower):
                thread.start()
        except RuntimeError:
            self._abandon()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, message: Message) -> None:
        self._outbox.put(message)

    def kill(self) -> None:
        """Send SIGKILL to all processes of the child's session; may be repeated."""
        with self._reaping:
            if self._process.returncode is None:
                _kill_session(self._process.pid)

    def _abandon(self) -> None:
        with self._hearing:
            self._has_ended = True
        _kill_session(self._process.pid)
        self._process.wait()
        self._outbox.put(None)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _follow(self, reader: threading.Thread) -> None:
        """Report the child's end. It is reaped after the kill, so that its number is not reused."""
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with self._reaping:
            _kill_session(self._process.pid)
            code = self._process.wait()
        reader.join(LAST_WORDS_SECONDS)
        self._outbox.put(None)
        with self._hearing:
            self._has_ended = True
            self._hear(Ended(self._name, code))

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            while line := lines.readline(LINE_BYTES):
                too_long = not line.endswith(b"\n") and len(line) == LINE_BYTES
                while too_long and line and not line.endswith(b"\n"):
                    line = lines.readline(1 << 20)
                self._take(line, f"it is longer than {LINE_BYTES} bytes" if too_long else "")

    def _take(self, line: bytes, problem: str) -> None:
        try:
            if problem:
                raise MessageError(problem)
            message = from_child(line)
        except MessageError as error:
            log.warning("a message of process %s is ignored: %s", self._name, error)
            return
        with self._hearing:
            if not self._has_ended:
                self._hear(Reported(self._name, message))

    def _write(self) -> None:
        assert self._process.stdin is not None
        while (message := self._outbox.get()) is not None:
            try:
                self._process.stdin.write(encode(message))
                self._process.stdin.flush()
            except OSError:
                return


def _kill_session(leader: int) -> None:
    """Send SIGKILL to every process in the session of the unreaped ``leader``, also to new ones."""
    killed: set[int] = set()
    while fresh := _session(leader) - killed:
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= fresh


def _session(leader: int) -> set[int]:
    members = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(folder.name)) == leader:
                members.add(int(folder.name))
    return members
