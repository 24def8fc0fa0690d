"""A replicated journal whose record was lost, with one of an export in its place, while its nodes
run on.

Protects that it is led on under the new record, and that nothing which was taken before is lost or
waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flumeng.journal.log.errors import HeldError
from flumeng.journal.replicas.replica_lag import LATE_SECONDS
from flumeng.platform.errors import UserError
from tests.unit.journal.replicas_world import NODES, World, bodies, promote, seqs, take


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world in which n1 leads and all are in sync."""
    world = World(tmp_path)
    world.settle()
    assert world.in_sync == list(NODES)
    yield world
    for site in world.sites.values():
        site.journal.close()


def test_journal_with_an_imported_record_is_led_on_in_its_own_term(world: World) -> None:
    term = world.membership.term
    end = take(world["n1"])
    world.settle()
    world.lose_record(replace(world.membership, term=1))
    world.settle()
    assert (world["n1"].leads, world.membership.term) == (True, term + 1)
    assert world.in_sync == list(NODES)
    world.cut_off("n3")
    world.look(LATE_SECONDS + 1.0)
    assert world.in_sync == ["n1", "n2"]
    end = take(world["n1"])
    world.settle()
    assert world["n1"].confirms(end)
    assert world["n2"].next_seq == end


def test_unconfirmed_events_are_confirmed_once_the_journal_is_led_again(world: World) -> None:
    world.away = {"n2", "n3"}
    end = take(world["n1"])
    assert not world["n1"].confirms(end)
    world.lose_record(replace(world.membership, term=1))
    world.sites["n1"].journal.set_membership(world.membership, world.version, world.created)
    assert not world["n1"].confirms(end)
    with pytest.raises(HeldError):
        take(world["n1"])
    world.away = set()
    world.settle()
    assert world["n1"].confirms(end)


def test_promoted_replica_gives_way_to_the_primary_of_the_imported_record(world: World) -> None:
    """Its log is that of the primary before, since it takes no events."""
    end = take(world["n1"])
    world.settle()
    before = world.membership
    world.away = {"n1"}
    promote(world, "n2")
    world.settle()
    assert world["n2"].leads
    world.sites["n1"].again()
    world.away = set()
    world.lose_record(before)
    world.settle()
    assert (world["n1"].leads, world["n2"].leads) == (True, False)
    with pytest.raises(UserError):
        world["n2"].close_for_appends()
    assert bodies(world["n1"], 0, end) == seqs((0, end))
    assert world.in_sync == list(NODES)
