"""The notes of a link: written for news, and the time of renewal now and then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng.config.component import RemoteFlow
from flumeng.connectors.sites.link_notes import LinkNotes, answered, failed, stale_seconds
from flumeng.journal.serving.gateway_wire import Broken, LeaseAnswer
from flumeng.platform.errors import UnavailableError
from flumeng.platform.metrics.table import LINK_DOWNS, LINK_LOST, LINK_UP
from tests.testkit.cluster import add_flow, new_cluster
from zkschema import paths
from zkschema.records import Link

BLANK = Link(site="fra", source="web", keep_seconds=1000.0)
UP = LeaseAnswer("fra", "id")


def test_first_answer_is_noted_and_later_ones_when_they_are_news() -> None:
    first = answered(BLANK, UP, 0.1, 100.0)
    assert first == replace(BLANK, renewed=100.0)
    assert answered(first, replace_answer(events=5, bytes=10, room=0.1), 0.1, 109.0) is first
    assert answered(first, UP, 0.1, 110.0).renewed == 110.0
    full = answered(first, replace_answer(events=5, bytes=10, room=0.6), 0.1, 101.0)
    assert (full.room, full.events, full.bytes, full.renewed) == (0.6, 5, 10, 101.0)


def replace_answer(**fields: object) -> LeaseAnswer:
    return LeaseAnswer("fra", "id", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("keep", "seconds"), [(600.0, 10.0), (86_400.0, 300.0), (10_000.0, 100.0)])
def test_noted_renewal_is_at_most_a_hundredth_too_old(keep: float, seconds: float) -> None:
    assert stale_seconds(keep) == seconds


def test_failure_is_noted_once_and_ends_with_the_next_answer() -> None:
    up = answered(BLANK, UP, 0.1, 100.0)
    down = failed(up, "no gateway  answers", 105.0)
    assert (down.down_since, down.why, down.downs) == (105.0, "no gateway answers", (105.0,))
    assert failed(down, "no gateway answers", 106.0) == down
    assert failed(down, "other", 107.0) == replace(down, why="other")
    again = answered(down, UP, 0.1, 108.0)
    assert (again.down_since, again.why, again.downs) == (0.0, "no gateway answers", (105.0,))


def test_slow_answers_are_noted_until_they_are_half_as_slow() -> None:
    slow = answered(BLANK, UP, 2.04, 100.0)
    assert slow.answer_seconds == 2.0
    assert answered(slow, UP, 1.5, 101.0) is slow
    assert answered(slow, UP, 0.9, 102.0).answer_seconds == 0.0


def test_break_is_noted_once_by_clocks_here() -> None:
    broken = Broken("b", "why", 50.0, 60, (("j", 40, 100),))
    found = answered(BLANK, replace_answer(broke=broken), 0.1, 100.0)
    assert found.broke is not None
    assert (found.broke.time, found.broke.events) == (50.0, 60)
    later = Broken("b", "why", 60.0, 60, (("j", 40, 100),))
    assert answered(found, replace_answer(broke=later), 0.1, 101.0) is found
    assert answered(found, UP, 0.1, 101.0) is found, "an operator here has not acknowledged it"


def test_notes_are_written_with_metrics() -> None:
    store = new_cluster()
    add_flow(store, "copy")
    notes = LinkNotes(store, "copy", RemoteFlow("fra", "web", 1000.0), lambda: 100.0, lambda: 0.0)
    assert list(notes.readings()) == []
    with pytest.raises(UnavailableError), notes.noted():
        raise UnavailableError("away")
    assert values(notes) == (0, 1, 0)
    assert notes.unsteady
    broken = Broken("b", "why", 50.0, 60)
    notes.renewed(lambda: replace_answer(broke=broken, time=700.0))
    assert values(notes) == (1, 1, 60)
    assert notes.ahead_seconds == 600.0
    record = store.read(paths.link("copy"))
    assert record is not None
    version = record.version
    notes.renewed(lambda: replace_answer(broke=broken))
    again = store.read(paths.link("copy"))
    assert again is not None
    assert again.version == version, "the same answer is not written again"


def values(notes: LinkNotes) -> tuple[object, ...]:
    found = {reading.metric: reading.value for reading in notes.readings()}
    return tuple(found[metric] for metric in (LINK_UP, LINK_DOWNS, LINK_LOST))
