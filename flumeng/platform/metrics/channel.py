"""Requests metrics and health from child processes over a socket pair. A hung child is left out,
and gets no further request before it has answered."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

MOST_BYTES = 64 << 20
MOST_ASKED_BYTES = 64


class Channel:
    """The parent's end of the socket pair; closed when the child ends. The child inherits
    ``descriptor``, which ``child_started`` closes in the parent."""

    def __init__(self, child: str) -> None:
        ours, self._theirs = socket.socketpair()
        self.descriptor = self._theirs.fileno()
        self._connection = Connection(ours.detach())
        self._changed = threading.Condition()
        self._asked: str | None = None
        self._answered: tuple[str, bytes] | None = None
        self._ended = False
        threading.Thread(target=self._read, name=f"{child}-metrics", daemon=True).start()

    def child_started(self) -> None:
        self._theirs.close()

    def ask(self, what: str) -> None:
        """Send a request to the child, unless an answer is still due; never blocks."""
        with self._changed:
            self._answered = None
            if self._asked is not None or self._ended:
                return
            self._asked = what
            with contextlib.suppress(OSError):
                self._connection.send_bytes(what.encode())

    def answer(self, what: str, deadline: float) -> bytes | None:
        """Return the answer to ``what``; None at ``deadline`` (monotonic) or the child's end."""
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            self._changed.wait_for(lambda: self._answered is not None or self._ended, left)
            answered, self._answered = self._answered, None
        return answered[1] if answered is not None and answered[0] == what else None

    def _read(self) -> None:
        try:
            while True:
                text = self._connection.recv_bytes(MOST_BYTES)
                with self._changed:
                    assert self._asked is not None, "the child answers only requests"
                    self._answered, self._asked = (self._asked, text), None
                    self._changed.notify_all()
        except (EOFError, OSError):
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            self._connection.close()


def serve(descriptor: int, answers: Mapping[str, Callable[[], bytes]]) -> None:
    """Answer the parent's requests in a thread of the child, until the parent ends."""
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)

    def run() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                asked = connection.recv_bytes(MOST_ASKED_BYTES).decode()
                connection.send_bytes(answers[asked]())

    threading.Thread(target=run, name="metrics", daemon=True).start()
