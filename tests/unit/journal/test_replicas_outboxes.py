"""Messages for the replicas on one node, sent in turns.

Protects that a replica in sync never waits for those that catch up, however many these are, and
that these get their turn however much is sent to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from flumeng.journal.replicas.links import Outboxes
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.journal.replication.history import Log
from flumeng.journal.replication.messages import Begin, Frames

BEGIN = Begin("l", 1, Log())


@dataclass
class Journal:
    id: str
    late: bool

    def is_catching_up(self, _node: str) -> bool:
        return self.late


def frames(start: int, end: int) -> Frames:
    return Frames(1, start, end, (), 0, 0)


class Line:
    """The outboxes and their journals: late ones have upper-case names."""

    def __init__(self) -> None:
        self.outboxes = Outboxes("n2")
        self.journals = {name: Journal(name, name.isupper()) for name in "abAB"}

    def put(self, name: str, *messages: Frames | Begin) -> None:
        for message in messages or (frames(0, 5),):
            self.outboxes.put(cast("ReplicatedJournal", self.journals[name]), message)

    def next(self, *, also_catching_up: bool = True) -> str:
        outbox = self.outboxes.next(also_catching_up=also_catching_up)
        return outbox.journal.id if outbox else ""


def test_replica_that_catches_up_waits_and_others_do_not() -> None:
    line = Line()
    for name in "AaBb":
        line.put(name)
    assert [line.next(also_catching_up=False) for _ in range(3)] == ["a", "b", ""]
    assert line.outboxes.any_catching_up
    assert [line.next() for _ in range(3)] == ["A", "B", ""]
    assert not line.outboxes.any_catching_up


def test_both_kinds_of_replicas_get_their_turn_under_any_load() -> None:
    line = Line()
    said = []
    for _ in range(4):
        for name in "abAB":
            line.put(name)
        said.append(line.next())
    assert [name.isupper() for name in said] == [False, True, False, True]
    assert set(said) == {"a", "b", "A", "B"}


def test_begin_message_does_not_wait() -> None:
    line = Line()
    line.put("A", BEGIN, frames(0, 5))
    assert line.next(also_catching_up=False) == "A"


def test_replica_that_has_caught_up_waits_no_more_and_nothing_is_lost() -> None:
    line = Line()
    line.put("A", frames(0, 5))
    line.journals["A"].late = False
    line.put("A", frames(5, 9))
    outbox = line.outboxes.next(also_catching_up=False)
    assert outbox is not None
    assert outbox.frames == frames(0, 9)
    assert line.next() == ""


def test_forgotten_messages_are_not_sent() -> None:
    line = Line()
    for name in "aAbB":
        line.put(name)
    line.outboxes.forget("a")
    line.outboxes.forget("A")
    assert [line.next() for _ in range(3)] == ["b", "B", ""]
    line.put("a")
    line.put("A")
    line.outboxes.clear()
    assert line.next() == ""
