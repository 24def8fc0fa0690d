"""A watch reports the positions of its journals, then each change and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from flumeng.journal.log import journal as journal_module
from flumeng.journal.log.checkpoint import Durability
from flumeng.journal.log.contract import Log, Position
from flumeng.journal.log.errors import DiskFullError
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.serving.watch import (
    MAX_REQUEST_BYTES,
    Watch,
    WatchAnswer,
    WatchRequest,
    parse_request,
)
from flumeng.platform.errors import UserError
from tests.testkit.journal import numbered_events

A, B, C = (f"web.n1.0.0000000{number}" for number in range(3))


class World:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.serving: dict[str, Log] = {}
        self.watches: list[Watch] = []

    def create(self, name: str) -> Journal:
        journal = Journal.create(self.directory, name)
        self.serving = {**self.serving, name: journal}
        return journal

    def watch(
        self, *names: str, heartbeat_seconds: float = 30.0, seconds: float = 30.0
    ) -> Iterator[WatchAnswer]:
        request = WatchRequest(
            names, gap_seconds=0.005, heartbeat_seconds=heartbeat_seconds, seconds=seconds
        )
        self.watches.append(Watch(lambda: self.serving, request))
        return self.watches[-1].answers()

    def listeners(self) -> int:
        return sum(len(journal.listeners) for journal in self.serving.values())

    def close(self) -> None:
        for journal in self.serving.values():
            journal.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(journal_module, "term_by_time", lambda: 0)
    world = World(tmp_path)
    yield world
    world.close()


def append(journal: Log, events: int = 10) -> None:
    journal.append(numbered_events(journal.next_seq, events))
    journal.sync()


def later(act: object, *given: object) -> None:
    assert callable(act)
    threading.Timer(0.05, act, given).start()


def at(safe: int, *, floor: int = 0, closed: bool = False) -> Position:
    return Position(1, floor, safe, closed)


def test_watch_answers_with_all_positions_first_and_then_with_changes(world: World) -> None:
    a, b = world.create(A), world.create(B)
    append(world.create(C))
    append(a)
    answers = world.watch(A, B)
    assert next(answers) == WatchAnswer({A: at(10), B: at(0)}, ())
    later(append, b)
    assert next(answers) == WatchAnswer({B: at(10)}, ())
    later(a.close_for_appends)
    assert next(answers) == WatchAnswer({A: at(10, closed=True)}, ())


@pytest.mark.slow
def test_new_position_is_reported_within_milliseconds(world: World) -> None:
    a = world.create(A)
    answers = world.watch(A)
    next(answers)
    moved_at = 0.0

    def move() -> None:
        nonlocal moved_at
        append(a)
        moved_at = time.monotonic()

    delays = []
    for _ in range(20):
        time.sleep(0.01)
        later(move)
        next(answers)
        delays.append(time.monotonic() - moved_at)
    assert sorted(delays)[10] < 0.05


def test_new_floor_is_reported(world: World) -> None:
    journal = MemoryJournal.create(world.directory, A)
    world.serving = {A: journal}
    append(journal)
    answers = world.watch(A)
    assert next(answers).positions == {A: at(10)}
    later(journal.trim, 10)
    assert next(answers).positions == {A: at(10, floor=10)}


def test_changes_within_the_gap_are_reported_together(world: World) -> None:
    journals = [world.create(f"web.n1.0.{number:08}") for number in range(10)]
    answers = world.watch(*world.serving)
    next(answers)
    for journal in journals:
        append(journal)
        append(journal)
    assert next(answers) == WatchAnswer({journal.id: at(20) for journal in journals}, ())


def test_notification_without_a_change_is_not_reported(world: World) -> None:
    a, b = world.create(A), world.create(B)
    answers = world.watch(A, B)
    next(answers)
    a.trim(0)
    append(b)
    assert next(answers) == WatchAnswer({B: at(10)}, ())


@pytest.mark.slow
def test_idle_watch_sends_heartbeats(world: World) -> None:
    world.create(A)
    answers = world.watch(A, heartbeat_seconds=0.1, seconds=0.35)
    began = time.monotonic()
    told = list(answers)
    assert told == [WatchAnswer({A: at(0)}, ()), *[WatchAnswer({}, ())] * (len(told) - 1)]
    assert 3 <= len(told) <= 5
    assert 0.3 < time.monotonic() - began < 5
    assert world.listeners() == 0


def test_added_or_removed_journal_is_reported(world: World) -> None:
    a = world.create(A)
    answers = world.watch(A, B)
    assert next(answers) == WatchAnswer({A: at(0)}, (B,))
    later(world.create, B)
    assert next(answers) == WatchAnswer({B: at(0)}, ())
    world.serving = {B: world.serving[B]}
    append(world.serving[B])
    assert next(answers) == WatchAnswer({B: at(10)}, (A,))
    assert len(a.listeners) == 0
    a.close()


def test_ended_watch_returns_soon_and_removes_its_listeners(world: World) -> None:
    world.create(A)
    answers = world.watch(A)
    next(answers)
    assert world.listeners() == 1
    later(world.watches[-1].end)
    began = time.monotonic()
    list(answers)
    assert time.monotonic() - began < 5
    assert world.listeners() == 0


def test_closed_watch_leaves_no_listener(world: World) -> None:
    world.create(A)
    answers = world.watch(A)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert world.listeners() == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"journals": "x"}',
        b'{"journals": ["../x"]}',
        b'{"journals": [7]}',
        b'{"journals": [], "gap_seconds": 0}',
        b'{"journals": [], "gap_seconds": 1e999}',
        b'{"journals": [], "gap_seconds": 5, "heartbeat_seconds": 1}',
        b'{"journals": [], "seconds": 1e9}',
        b'{"journals": [], "seconds": "x"}',
        b"[" * 100_000,
        b'{"journals": ["' + b"x" * MAX_REQUEST_BYTES + b'"]}',
    ],
)
def test_malformed_request_is_refused(body: bytes) -> None:
    with pytest.raises(UserError, match="a watch request"):
        parse_request(body)


def test_unknown_fields_of_a_newer_reader_are_ignored() -> None:
    request = WatchRequest((A,))
    told = msgspec.json.decode(msgspec.json.encode(request)) | {"newer": 1}
    assert parse_request(msgspec.json.encode(told)) == request


@pytest.mark.parametrize("kind", ["disk", "spill", "memory"])
def test_watch_reports_that_a_journal_takes_nothing_until_it_is_trimmed(
    world: World, kind: str
) -> None:
    limits = Limits(max_bytes=20_000)
    journal: Log
    if kind == "memory":
        journal = MemoryJournal.create(world.directory, A, limits=limits)
    else:
        durability: Durability = "spill" if kind == "spill" else "disk"
        journal = Journal.create(world.directory, A, durability=durability, limits=limits)
    world.serving = {A: journal}
    answers = world.watch(A)
    assert not next(answers).positions[A].full
    with pytest.raises(DiskFullError):
        for _ in range(1000):
            append(journal)
    told = next(answers).positions[A]
    assert told.full
    assert told.safe > 0
    journal.trim(journal.safe)
    append(journal)
    assert not next(answers).positions[A].full
