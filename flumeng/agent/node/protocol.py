"""The protocol between a node and its children: JSON objects, one a line, over pipes.

A child reads standard input and writes standard output; it stops at the end of input, when the
parent has died. Both descriptors are claimed at start, so that a stray ``print`` goes to standard
error. Messages are level-triggered: a ``configure`` carries the whole configuration.

From the child: ``ready`` (with the ``address`` of its server, a collector also with its
``spark_ui``); ``status`` when it changes, with ``refused`` journals that take no events and
``locked`` ones that lack a key; ``awaits``: ``journals`` whose delivery senders wait for;
``proposal``: a change of a replicated journal's members at a ``version``; ``alive`` every
``ALIVE_SECONDS`` while it makes progress, with ``held`` while it waits for a slow disk or JVM: the
same text is the same wait.

From the node: ``past`` (how far readers had ``seen`` local journals) before the first
``configure``; ``acks`` and ``delivered``; ``remove``; ``replicas`` with all memberships, and the
``texts`` of flows with locked journals; ``quiesce`` (accept no events) and ``stop``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Annotated, Any, Literal, Self

import msgspec

Message = dict[str, Any]

ALIVE_SECONDS = 2.0
URL_CHARACTERS = 1000


class MessageError(ValueError):
    """A malformed message."""


@dataclass(frozen=True)
class Assignment:
    """A task of a ``configure`` message; ``spec`` is the text of its flow."""

    flow: str
    task: str
    epoch: int
    revision: int
    spec: str

    @classmethod
    def of(cls, task: Mapping[str, Any], **more: Any) -> Self:
        """Return the task with ``more`` fields of a subclass."""
        named = ("flow", "task", "epoch", "revision", "spec")
        return cls(*(task[name] for name in named), **more)

    @property
    def key(self) -> str:
        return f"{self.flow}/{self.task}"


class Parent:
    """The pipes from and to the parent process. ``send`` is thread-safe."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._sending = threading.Lock()

    @classmethod
    def take_stdio(cls) -> Parent:
        """Claim descriptors 0 and 1; other code then gets /dev/null and standard error."""
        incoming = os.fdopen(os.dup(0), "rb")
        outgoing = os.fdopen(os.dup(1), "wb", buffering=0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        return cls(incoming, outgoing)

    def messages(self) -> Iterator[Message]:
        """Yield messages until the parent dies."""
        for line in self._incoming:
            if line.endswith(b"\n"):
                yield decode(line)

    def send(self, message: Message) -> None:
        """Send a message; ignored when the parent has died, which ends ``messages``."""
        line = memoryview(encode(message))
        with self._sending:
            try:
                while line:
                    line = line[self._outgoing.write(line) :]
            except BrokenPipeError:
                return


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the JSON object in a line. Raises MessageError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"it is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise MessageError("it is not a JSON object")
    return message


def from_child(line: bytes) -> Message:
    """Return a child's message after a check of its type and fields. Raises MessageError."""
    message = decode(line)
    kind = message.get("type")
    shape = SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise MessageError(f"it has the unknown type {kind!r}")
    if not line.endswith(b"\n"):
        raise MessageError(f"the {kind} message is incomplete")
    try:
        msgspec.convert(message, shape)
    except msgspec.ValidationError as error:
        raise MessageError(f"the {kind} message has invalid fields: {error}") from error
    return message


class Ready(msgspec.Struct):
    address: str = ""
    spark_ui: Annotated[str, msgspec.Meta(max_length=URL_CHARACTERS)] = ""


class Alive(msgspec.Struct):
    held: str = ""


class Task(msgspec.Struct):
    epoch: int
    revision: int
    state: Literal["starting", "running", "retrying", "failed", "stopped", "standby"]
    epoch_seen: int = 0
    health: Literal["", "unhealthy", "unreachable"] = ""
    error: str | None = None


class Journal(msgspec.Struct):
    flow: str
    term: int
    closed: bool
    end: int | None = None
    replica: str = ""
    lineage: str = ""
    leads: bool = False
    locked: str = ""
    damaged: bool = False


class Refused(msgspec.Struct):
    why: str
    older: bool
    settled: bool


class Status(msgspec.Struct):
    answers: int | None
    tasks: dict[str, Task]
    journals: dict[str, Journal] = {}
    kept_flows: list[str] = []
    replicas: dict[str, str] = {}
    refused: dict[str, Refused] = {}


class Awaits(msgspec.Struct):
    journals: list[str]


class Proposal(msgspec.Struct):
    journal: str
    lineage: str
    primary: str
    version: int
    term: int
    in_sync: list[str]
    nodes: list[str]


SHAPES: Mapping[str, type[msgspec.Struct]] = {
    "ready": Ready,
    "alive": Alive,
    "status": Status,
    "awaits": Awaits,
    "proposal": Proposal,
}
"""The fields of each type of message; a child may send further ones."""
