"""A child process of the node: started, spoken to over pipes, and heard of when it ends."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Callable, Collection, Sequence

from flumeng.node.machine import Ended, Event, Said
from flumeng.node.protocol import Message, decode, encode


class ChildProcess:
    """``hear`` gets each message and at last one Ended, in order, from a thread of the child's.

    The child is in a session of its own, so that a Ctrl-C meant for the node does not reach it. It
    stops by itself when the node dies, since its standard input ends. ``descriptors`` are those of
    the node that it inherits.
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
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=descriptors,
        )
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name=f"{name}-reader", daemon=True).start()
        threading.Thread(target=self._write, name=f"{name}-writer", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, message: Message) -> None:
        """Send without ever blocking, even when the child does not read."""
        self._outbox.put(message)

    def kill(self) -> None:
        self._process.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._hear(Said(self._name, decode(line)))
        code = self._process.wait()
        self._outbox.put(None)
        self._hear(Ended(self._name, code))

    def _write(self) -> None:
        assert self._process.stdin is not None
        while (message := self._outbox.get()) is not None:
            try:
                self._process.stdin.write(encode(message))
                self._process.stdin.flush()
            except BrokenPipeError:
                return
