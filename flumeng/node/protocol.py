"""What a node and its child processes say to each other: JSON objects, one a line, over pipes.

A child reads from its parent on standard input and writes to it on standard output. End of input
means that the parent is gone, and then the child must stop. Both descriptors are taken over at
start, so that a stray ``print`` (or a JVM that inherits them) goes to standard error and never into
the protocol. Messages are level-triggered: a ``configure`` carries everything that is wanted now.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any

Message = dict[str, Any]


class Parent:
    """The child's end of the two pipes. ``send`` may be called from any thread."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._sending = threading.Lock()

    @classmethod
    def take_stdio(cls) -> Parent:
        """Claim descriptors 0 and 1 for the protocol; later users get /dev/null and stderr."""
        incoming = os.fdopen(os.dup(0), "rb")
        outgoing = os.fdopen(os.dup(1), "wb", buffering=0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        return cls(incoming, outgoing)

    def messages(self) -> Iterator[Message]:
        """Yield what the parent sends; ends when the parent is gone."""
        for line in self._incoming:
            yield decode(line)

    def send(self, message: Message) -> None:
        """Tell the parent. A parent that is gone is noticed by ``messages``, not here."""
        with self._sending:
            try:
                self._outgoing.write(encode(message))
            except BrokenPipeError:
                return


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    message = json.loads(line)
    assert isinstance(message, dict), f"not a message: {line[:200]!r}"
    return message
