"""Reads that a server grants to taps: by the node's policy, and a bounded part in all."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from flumeng.config import policy
from flumeng.journal.log.errors import TapDeniedError, TapsBusyError
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.serving import taps
from flumeng.journal.serving.taps import Taps
from flumeng.journal.serving.wire import Ticket, make_ticket, parse_ticket
from flumeng.platform.errors import UserError
from tests.testkit.clock import Clock
from tests.testkit.journal import numbered_events

ID = "web.n1.0.0a1b2c3d"
EVENTS = 24_000


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryJournal]:
    """A journal of 12 MB that is larger than several windows, also compressed."""
    place = tmp_path_factory.mktemp("journals")
    journal = MemoryJournal.create(place, ID, limits=Limits(1 << 30))
    for first in range(0, EVENTS, 100):
        journal.append(numbered_events(first, 100, body_bytes=65_536))
    journal.sync()
    yield journal
    journal.close()


def read(found: Taps, journal: MemoryJournal) -> int:
    return sum(window.buffer.size for window in found.windows(journal, 0, EVENTS))


def test_tap_of_a_flow_that_is_not_allowed_is_refused() -> None:
    allowed = Taps(policy.parse("tap: [web]", "node.yaml").may_tap)
    allowed.admit(ID)
    with pytest.raises(TapDeniedError, match="policy file does not allow taps of the flow app"):
        allowed.admit("app.n1.0.0a1b2c3d")
    with pytest.raises(TapDeniedError):
        Taps(policy.parse("tap: []", "node.yaml").may_tap).admit(ID)
    Taps(policy.UNRESTRICTED.may_tap).admit(ID)
    with pytest.raises(UserError, match=r"tap\[0\]: expected 1 to 63 small letters"):
        policy.parse("tap: [A.b]", "node.yaml")


@pytest.mark.slow
def test_bytes_that_all_taps_read_in_a_second_are_bounded(journal: MemoryJournal) -> None:
    clock = Clock(0.0)
    found = Taps(lambda _: True, clock, bytes_a_second=100_000, read_bytes=20_000)
    one = read(found, journal)
    assert one < journal.bytes
    total = one
    with pytest.raises(TapsBusyError, match="taps already read 100000 bytes/s from this node"):
        for _ in range(100):
            total += read(found, journal)
    assert 100_000 <= total <= 100_000 + one
    clock.now += total / 100_000
    assert read(found, journal) == one


@pytest.mark.slow
def test_number_of_taps_reading_at_once_is_bounded(journal: MemoryJournal) -> None:
    found = Taps(lambda _: True)
    running = [found.windows(journal, 0, EVENTS) for _ in range(taps.READS_AT_ONCE)]
    for windows in running:
        next(windows)
    with pytest.raises(TapsBusyError, match="taps already read from this node"):
        next(found.windows(journal, 0, EVENTS))
    del running[0], windows
    assert next(found.windows(journal, 0, EVENTS))


def test_tap_ticket_is_not_valid_as_an_ordinary_ticket() -> None:
    """A server without taps takes a ticket with these keys at its top for a read like any other."""
    ticket = make_ticket(ID, 3, 9, tapped=True)
    assert not {"journal", "start", "end"} & set(json.loads(ticket))
    assert parse_ticket(ticket) == Ticket(ID, 3, 9, tapped=True)
    assert parse_ticket(make_ticket(ID, 3, 9)) == Ticket(ID, 3, 9)
    for wrong in (b'{"tap": 3}', b'{"tap": {"journal": "a"}}', b'["tap"]', b'"tap"', b"3"):
        with pytest.raises(UserError, match="a ticket is like"):
            parse_ticket(wrong)
