"""What a node and its child processes say to each other: JSON objects, one a line, over pipes.

A child reads from its parent on standard input and writes to it on standard output. End of input
means that the parent is gone, and then the child must stop. Both descriptors are taken over at
start, so that a stray ``print`` (or a JVM that inherits them) goes to standard error and never into
the protocol. Messages are level-triggered: a ``configure`` carries everything that is wanted now.

What a child says: ``ready`` once it can work, an ingest worker with the ``address`` of its
journals, a collector with the ``spark_ui`` that it may have and the ``address`` of what it counts;
``status`` whenever that changes; ``awaits`` with the ``journals`` of which somebody waits until
their events are delivered, whenever those are others; the node then asks for their acks often and
tells what it finds as ``delivered``, which it also tells of journals that others read more slowly
than their flow; ``proposal`` of a change of who holds a replicated ``journal``, at the ``version``
of its record that it knows: the node says what is there now with ``replicas``, for all of them and
whenever that changes, and with it the ``texts`` of flows with a journal that is ``locked`` in the
status, since its key is not here. Before the first ``configure`` the node sends ``past``: how far
readers had ``seen`` the journals that lay here at its start. ``refused`` in the status are those
that take no more events because of that, each with why; ``alive`` every ``ALIVE_SECONDS``, but only
while its work goes on: the thread that does the work has turned, and whatever it depends on
(Spark's JVM, the disk) has answered. ``held`` in it names what it waits for and has to wait for: a
node is patient with a slow disk, not with a process that has stopped. The same text is the same
wait; another one begins anew.
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
    """A line that is no message of this protocol."""


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
        """Yield what the parent sends; ends when the parent is gone, perhaps amid a message."""
        for line in self._incoming:
            if line.endswith(b"\n"):
                yield decode(line)

    def send(self, message: Message) -> None:
        """Tell the parent. A parent that is gone is noticed by ``messages``, not here."""
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
    """The message in a line. Raises MessageError when there is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise MessageError("not an object")
    return message


def from_child(line: bytes) -> Message:
    """A child's message, of a known type and with the fields of that type.

    Raises MessageError: a child's fault is no fault of the node.
    """
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
