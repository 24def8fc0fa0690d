"""The protocol between a node and its children: JSON objects, one a line, over pipes.

A child reads standard input and writes standard output; end of input means that the parent is gone,
and the child stops. Both descriptors are taken over at start, so that a stray ``print`` goes to
standard error. Messages are level-triggered: a ``configure`` carries everything that is wanted.

From the child: ``ready`` (an ingest worker with the ``address`` of its journals, a collector with
its ``spark_ui`` and ``address``); ``status`` when it changes, with ``refused`` journals that take
no events and ``locked`` ones that lack a key; ``awaits``: ``journals`` whose delivery senders wait
for; ``proposal``: a change of a replicated journal's members at a ``version``; ``alive`` every
``ALIVE_SECONDS`` while its work goes on, with ``held`` for a slow disk or JVM it waits for: the
same text is the same wait.

From the node: ``past`` (how far readers had ``seen`` local journals) before the first
``configure``; ``acks`` and ``delivered``; ``replicas`` with all memberships, and the ``texts`` of
flows with locked journals.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

Message = dict[str, Any]

ALIVE_SECONDS = 2.0
URL_CHARACTERS = 1000
TASK_STATES = ("starting", "running", "retrying", "failed", "stopped", "standby")


class MessageError(ValueError):
    """A malformed line."""


class Parent:
    """The child's end of the two pipes. ``send`` is thread-safe."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._sending = threading.Lock()

    @classmethod
    def take_stdio(cls) -> Parent:
        """Claims descriptors 0 and 1; later users get /dev/null and stderr."""
        incoming = os.fdopen(os.dup(0), "rb")
        outgoing = os.fdopen(os.dup(1), "wb", buffering=0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        return cls(incoming, outgoing)

    def messages(self) -> Iterator[Message]:
        """Yields messages until the parent is gone."""
        for line in self._incoming:
            if line.endswith(b"\n"):
                yield decode(line)

    def send(self, message: Message) -> None:
        """A lost parent is noticed by ``messages``, not here."""
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
    """Raises MessageError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise MessageError("not an object")
    return message


def from_child(line: bytes) -> Message:
    """A child's message of a known type with valid fields. Raises MessageError."""
    message = decode(line)
    kind = message.get("type")
    check = CHECKS.get(kind) if isinstance(kind, str) else None
    if check is None:
        raise MessageError(f"unknown type {kind!r}")
    if not line.endswith(b"\n") or not check(message):
        raise MessageError(f"no {kind} has these fields")
    return message


def _is_ready(message: Message) -> bool:
    spark_ui = message.get("spark_ui", "")
    return (
        isinstance(message.get("address", ""), str)
        and isinstance(spark_ui, str)
        and len(spark_ui) <= URL_CHARACTERS
    )


def _is_alive(message: Message) -> bool:
    return isinstance(message.get("held", ""), str)


def _is_status(message: Message) -> bool:
    tasks, journals = message.get("tasks"), message.get("journals", {})
    kept = message.get("kept_flows", [])
    copies = message.get("copies", {})
    refused = message.get("refused", {})
    return (
        isinstance(message.get("answers", ""), int | None)
        and isinstance(tasks, dict)
        and all(map(_is_task, tasks.values()))
        and isinstance(journals, dict)
        and all(map(_is_journal, journals.values()))
        and isinstance(kept, list)
        and all(isinstance(flow, str) for flow in kept)
        and isinstance(copies, dict)
        and all(isinstance(copy, str) for copy in copies.values())
        and isinstance(refused, dict)
        and all(map(_is_refused, refused.values()))
    )


def _is_task(task: object) -> bool:
    return (
        isinstance(task, Mapping)
        and isinstance(task.get("epoch"), int)
        and isinstance(task.get("revision"), int)
        and isinstance(task.get("epoch_seen", 0), int)
        and task.get("health", "") in ("", "unhealthy", "unreachable")
        and task.get("state") in TASK_STATES
        and isinstance(task.get("error"), str | None)
    )


def _is_journal(journal: object) -> bool:
    return (
        isinstance(journal, Mapping)
        and isinstance(journal.get("flow"), str)
        and isinstance(journal.get("term"), int)
        and isinstance(journal.get("closed"), bool)
        and isinstance(journal.get("end"), int | None)
        and isinstance(journal.get("copy", ""), str)
        and isinstance(journal.get("lineage", ""), str)
        and isinstance(journal.get("leads", False), bool)
        and isinstance(journal.get("locked", ""), str)
        and isinstance(journal.get("damaged", False), bool)
    )


def _is_refused(said: object) -> bool:
    return (
        isinstance(said, Mapping)
        and isinstance(said.get("why"), str)
        and isinstance(said.get("older"), bool)
        and isinstance(said.get("settled"), bool)
    )


def _is_awaits(message: Message) -> bool:
    journals = message.get("journals")
    return isinstance(journals, list) and all(isinstance(name, str) for name in journals)


def _is_proposal(message: Message) -> bool:
    names, numbers = ("journal", "lineage", "primary"), ("version", "term")
    lists = [message.get(key) for key in ("in_sync", "nodes")]
    return (
        all(isinstance(message.get(key), str) for key in names)
        and all(isinstance(message.get(key), int) for key in numbers)
        and all(isinstance(one, list) and all(isinstance(n, str) for n in one) for one in lists)
    )


CHECKS: Mapping[str, Callable[[Message], bool]] = {
    "ready": _is_ready,
    "alive": _is_alive,
    "status": _is_status,
    "awaits": _is_awaits,
    "proposal": _is_proposal,
}
