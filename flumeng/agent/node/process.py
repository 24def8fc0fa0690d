"""A child process of the node: started, spoken to over pipes, and heard of when it ends."""

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

from flumeng.agent.node.events import Ended, Event, Said
from flumeng.agent.node.protocol import Message, MessageError, encode, from_child

log = logging.getLogger(__name__)

LINE_BYTES = 64 << 20
"""What a child says at once; a status of 100,000 journals has 15 MB."""

LAST_WORDS_SECONDS = 1.0
"""How long a child that has ended may still be read, when somebody else holds its pipe."""


class ChildProcess:
    """``hear`` gets each message and at last one Ended, in order, from threads of the child's.

    Whatever the child writes, its end is heard of: what is no message is logged and passed over.
    The child is in a session of its own, so that a Ctrl-C meant for the node does not reach it.
    The child stops by itself when the node dies, since its standard input ends; when the child has
    ended or is killed, all that is left of its session is killed, also what is stopped.
    ``descriptors`` are those of the node that the child inherits. Raises OSError or RuntimeError
    when there is no room for the process or its threads.
    """

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
        """Send without ever blocking, even when the child does not read."""
        self._outbox.put(message)

    def kill(self) -> None:
        """SIGKILL to the child and to all that is of its session; may be repeated."""
        with self._reaping:
            if self._process.returncode is None:
                _kill_session(self._process.pid)

    def _abandon(self) -> None:
        """The process is there, but not all of its threads; nothing more is heard of it."""
        with self._hearing:
            self._has_ended = True
        _kill_session(self._process.pid)
        self._process.wait()
        self._outbox.put(None)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _follow(self, reader: threading.Thread) -> None:
        """While the child is not reaped, no other process can get its number."""
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
                self._take(line, f"a line of more than {LINE_BYTES} bytes" if too_long else "")

    def _take(self, line: bytes, problem: str) -> None:
        try:
            if problem:
                raise MessageError(problem)
            message = from_child(line)
        except MessageError as error:
            log.warning("%s said something that is passed over: %s", self._name, error)
            return
        with self._hearing:
            if not self._has_ended:
                self._hear(Said(self._name, message))

    def _write(self) -> None:
        assert self._process.stdin is not None
        while (message := self._outbox.get()) is not None:
            try:
                self._process.stdin.write(encode(message))
                self._process.stdin.flush()
            except OSError:
                return


def _kill_session(leader: int) -> None:
    """SIGKILL to every process of the session that ``leader`` began, also to those that are forked
    meanwhile, but for those of other users. ``leader`` may have ended, and is not reaped."""
    killed: set[int] = set()
    while fresh := _session(leader) - killed:
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= fresh


def _session(leader: int) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(folder.name)) == leader:
                found.add(int(folder.name))
    return found
