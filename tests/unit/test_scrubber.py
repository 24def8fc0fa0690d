"""What lies on the disks of copies and nobody reads is looked at, so that damage is met in time.

Protects that damage in any frame is found, and that nothing else passes for damage: what is
trimmed, cut or removed meanwhile, or cannot be opened for a moment.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flumeng.ingest.replicas import scrubber as scrubbers
from flumeng.ingest.replicas.lateness import TELL_SECONDS
from flumeng.ingest.replicas.replicated_journal import ReplicatedJournal
from flumeng.ingest.replicas.scrubber import Scrubber
from flumeng.journal import replica as replicas
from flumeng.journal.disk import Disk
from flumeng.journal.segment import Window
from flumeng.journal.testing import numbered_events
from tests.live.one_host import eventually
from tests.unit.copies_world import NAME, NODES, World, take


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Each node has three segments of three frames; all is in sync."""
    world = World(tmp_path)
    for _ in range(3):
        world.settle()
        for _ in range(3):
            take(world["n1"])
            world.settle()
        world.look(2 * TELL_SECONDS)
        world.sites["n1"].again()  # each term begins a segment
    world.settle()
    world.look(2 * TELL_SECONDS)
    assert [len(segments(world, name)) for name in NODES] == [3, 3, 3]
    yield world
    for site in world.sites.values():
        site.journal.close()


def segments(world: World, name: str) -> list[Path]:
    return sorted((world.path / name / NAME).glob("*.segment"))


def damage(segment: Path, at: int) -> None:
    raw = bytearray(segment.read_bytes())
    raw[at] ^= 1
    segment.write_bytes(raw)


def look(*journals: ReplicatedJournal) -> int:
    return sum(Scrubber(lambda: journals).look())


@pytest.mark.parametrize("name", NODES)
def test_each_frame_of_each_segment_is_looked_at(world: World, name: str) -> None:
    assert look(world[name]) > sum(path.stat().st_size for path in segments(world, name)) * 0.9
    assert world[name].damaged == ""


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("segment", range(3))
@pytest.mark.parametrize("at", [-10, -1000, 1000])
def test_damage_is_met_wherever_it_is(world: World, name: str, segment: int, at: int) -> None:
    damage(segments(world, name)[segment], at)
    look(*(world[one] for one in NODES))
    assert [one for one in NODES if world[one].damaged] == [name]


def test_what_was_not_synced_is_left_alone(world: World) -> None:
    primary = world["n1"]
    primary.append(numbered_events(primary.next_seq, 10), {})
    damage(segments(world, "n1")[-1], -10)
    look(primary)
    assert primary.damaged == ""


def test_a_copy_that_has_not_heard_yet_what_others_have_looks_at_all(world: World) -> None:
    """As after a kill: what it knew of the others was in its memory."""
    world["n2"].close()
    directory = world.path / "n2" / NAME
    replicas.write(directory, replace(replicas.read(directory), checkpoint=0), Disk())
    world.sites["n2"].again()
    assert world["n2"].safe == 0
    damage(segments(world, "n2")[0], -10)
    look(world["n2"])
    assert world["n2"].damaged


def test_what_is_trimmed_meanwhile_is_no_damage_and_the_rest_is_looked_at(world: World) -> None:
    primary = world["n1"]
    looking = Scrubber(lambda: [primary]).look()
    next(looking)
    primary.trim(60)
    assert primary.floor > 0
    damage(segments(world, "n1")[-1], -10)
    list(looking)
    assert "checksum" in primary.damaged


def cut(world: World) -> None:
    world["n2"].cut(70)


def cut_what_is_damaged(world: World) -> None:
    damage(segments(world, "n2")[-1], -10)
    world["n2"].cut(60)


def remove(world: World) -> None:
    world["n2"].remove()


@pytest.mark.parametrize("happens", [cut, cut_what_is_damaged, remove])
def test_what_is_cut_or_gone_meanwhile_is_no_damage(
    world: World, happens: Callable[[World], None]
) -> None:
    looking = Scrubber(lambda: [world["n2"]]).look()
    next(looking)
    happens(world)
    list(looking)
    assert world["n2"].damaged == ""


def test_what_cannot_be_opened_now_is_looked_at_next_time(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Held:
        id = "web.n9.0.0a1b2c3d"

        def scrub(self) -> Iterator[Window]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    read = list(Scrubber(lambda: [Held(), world["n1"]]).look())
    assert len(read) == 3
    assert "web.n9.0.0a1b2c3d cannot be looked at now" in caplog.text


def test_it_goes_round_by_itself_and_reads_no_faster_than_it_may(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbers, "PASS_SECONDS", 0.05)
    waited: list[float] = []
    scrubber = Scrubber(lambda: [world["n1"]])
    wait = scrubber._stopping.wait

    def noted(seconds: float) -> bool:
        waited.append(seconds)
        return wait(min(seconds, 0.01))

    monkeypatch.setattr(scrubber._stopping, "wait", noted)
    scrubber.start()
    damage(segments(world, "n1")[0], -10)
    eventually(lambda: bool(world["n1"].damaged), "it does not look again")
    scrubber.stop()
    nbytes = segments(world, "n1")[1].stat().st_size
    assert min(seconds for seconds in waited[:3]) > 0.5 * nbytes / scrubbers.BYTES_PER_SECOND
