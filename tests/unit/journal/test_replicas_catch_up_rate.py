"""The rate at which replicas that catch up get their missing events.

Protects that senders do not wait for that, that a replica catches up under any rate of events, and
that at rest nothing is slowed down.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from flumeng.journal.replicas.links import (
    BUSY_SECONDS,
    LEAST,
    PART_BYTES,
    WHOLE_BYTES,
    Links,
    Throttle,
)
from flumeng.journal.replicas.replica_lag import LATE_SECONDS
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.journal.replication.messages import Frames
from flumeng.journal.serving import replica_wire
from flumeng.journal.serving.access import Peer
from flumeng.journal.serving.server import JournalServer
from flumeng.journal.serving.wire import FRAMES_SCHEMA
from tests.testkit.waiting import wait_for
from tests.unit.journal.replicas_world import World, promote, take


def sent_in(throttle: Throttle, seconds: float, taken: float) -> float:
    """The bytes sent per second while ``taken`` bytes per second are received."""
    now, sent = 100.0, 0
    while now < 100.0 + seconds:
        throttle.took(int(taken / 100), now)
        while now >= throttle.due_at(now):
            sent += throttle.at_once(now)
            throttle.sent(throttle.at_once(now), now)
        now += 0.01
    return sent / seconds


@pytest.mark.parametrize("taken", [1e3, 40e6, 80e6])
def test_catching_up_gets_twice_the_incoming_rate_at_most(taken: float) -> None:
    wanted = max(LEAST, 2 * taken)
    assert sent_in(Throttle(), 20.0, taken) == pytest.approx(wanted, rel=0.1)


def test_nothing_waits_at_rest() -> None:
    throttle = Throttle()
    assert (throttle.due_at(5.0), throttle.at_once(5.0)) == (5.0, WHOLE_BYTES)
    throttle.took(1000, 5.0)
    throttle.sent(LEAST, 5.0)
    assert throttle.due_at(5.5) == pytest.approx(6.0, abs=0.2)
    assert throttle.at_once(5.5) == PART_BYTES
    rest = 5.0 + BUSY_SECONDS
    assert (throttle.due_at(rest), throttle.at_once(rest)) == (rest, WHOLE_BYTES)


class Later(Throttle):
    """Passes nothing before ``at``."""

    at = inf

    def due_at(self, now: float) -> float:
        return max(now, self.at)


class Replicas:
    """The primary's messages to its replicas."""

    def __init__(self) -> None:
        self.said: queue.Queue[tuple[str, int]] = queue.Queue()
        self.ends: dict[str, int] = {}

    def serve_replicas(self, _peer: Peer, reader: Any, writer: Any) -> None:
        writer.begin(FRAMES_SCHEMA)
        for chunk in reader:
            data = chunk.app_metadata.to_pybytes()
            if data != replica_wire.PING:
                envelope = replica_wire.decode(data)
                assert isinstance(envelope.message, Frames)
                self.said.put((envelope.journal, envelope.message.end))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world in which n3 is not in sync any more."""
    world = World(tmp_path)
    world.settle()
    world.cut_off("n3")
    world.look(LATE_SECONDS + 1.0)
    assert world.in_sync == ["n1", "n2"]
    yield world
    for site in world.sites.values():
        site.journal.close()


def test_primary_knows_the_replicas_that_catch_up(world: World) -> None:
    primary = world["n1"]
    assert [primary.is_catching_up(node) for node in ("n2", "n3", "n4")] == [False, True, False]
    promote(world, "n2")
    world.settle()
    assert not primary.is_catching_up("n3")
    assert world["n2"].is_catching_up("n3")


def test_received_bytes_are_reported(world: World) -> None:
    take(world["n1"])
    assert world.sites["n1"].took_bytes > 0


@dataclass
class Talker:
    """A journal without events to send, as a link sees it."""

    id: str
    late: bool
    cipher = SimpleNamespace(reference=None)

    def is_catching_up(self, _node: str) -> bool:
        return self.late

    def part_of(self, message: Frames, _start: int, _end: int) -> Frames:
        return message

    def reconnected(self, _node: str) -> bool:
        return False


@pytest.mark.slow
def test_replica_in_sync_does_not_wait_for_one_that_catches_up() -> None:
    """On the same wire, and for later messages."""
    replicas, throttle = Replicas(), Later()
    late, in_sync = (
        cast("ReplicatedJournal", Talker(name, name == "late")) for name in ("late", "in sync")
    )
    server = JournalServer("127.0.0.1", 0, journals=dict, replicas=replicas)
    links = Links(lambda _: server.address, throttle, lambda: None)
    try:
        links.send("n3", late, Frames(1, 5, 5, (), 0, 0))
        for seq in (7, 8):
            links.send("n3", in_sync, Frames(1, seq, seq, (), 0, 0))
            assert replicas.said.get(timeout=60) == ("in sync", seq)
        throttle.at = 0.0
        assert replicas.said.get(timeout=60) == ("late", 5)
    finally:
        links.close()
        server.stop()


def test_unusable_answers_of_replicas_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The connection is made again and again, which was seen nowhere."""

    class Strange(Replicas):
        def serve_replicas(self, _peer: Peer, reader: Any, writer: Any) -> None:
            writer.begin(FRAMES_SCHEMA)
            for _ in reader:
                writer.write_metadata(pa.py_buffer(b"{}"))

    server = JournalServer("127.0.0.1", 0, journals=dict, replicas=Strange())
    links = Links(lambda _: server.address, Throttle(), lambda: None)
    try:
        links.send(
            "n3", cast("ReplicatedJournal", Talker("a", late=False)), Frames(1, 5, 5, (), 0, 0)
        )
        text = "cannot use an answer of the replicas on node n3, and try again: "
        wait_for(lambda: text in caplog.text)
    finally:
        links.close()
        server.stop()
