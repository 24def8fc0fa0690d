"""Parts of copies that no reader reads are scrubbed, so that damage is met in time.

Protects that damage in any frame is found, and that nothing else passes for damage: parts that are
trimmed, cut or removed meanwhile, or cannot be opened for a moment.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flumeng.journal.log import replica as replicas
from flumeng.journal.log.disk import Disk
from flumeng.journal.log.segment import Window
from flumeng.journal.replicas import replicas as scrubbers
from flumeng.journal.replicas.replica_lag import RESEND_SECONDS
from flumeng.journal.replicas.replicas import Scrubber
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.platform.backoff import FIRST_SECONDS
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import wait_for
from tests.unit.journal.replicas_world import NAME, NODES, World, take


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Each node has three segments of three frames; all is in sync."""
    world = World(tmp_path)
    for _ in range(3):
        world.settle()
        for _ in range(3):
            take(world["n1"])
            world.settle()
        world.look(2 * RESEND_SECONDS)
        world.sites["n1"].again()  # each term begins a segment
    world.settle()
    world.look(2 * RESEND_SECONDS)
    assert [len(segments(world, name)) for name in NODES] == [3, 3, 3]
    yield world
    for site in world.sites.values():
        site.journal.close()


def segments(world: World, name: str) -> list[Path]:
    return sorted((world.path / name / NAME).glob("*.segment"))


def damage(segment: Path, at: int) -> None:
    raw = bytearray(segment.read_bytes())
    raw[at] ^= 1
    put_into(segment, bytes(raw))


def look(*journals: ReplicatedJournal) -> list[float]:
    """Scrub once; returns the seconds of the waits."""
    return list(Scrubber(lambda: journals).scrub())


@pytest.mark.parametrize("name", NODES)
def test_everything_is_scrubbed_within_the_read_rate(world: World, name: str) -> None:
    files = [path.stat().st_size for path in segments(world, name)]
    seconds = look(world[name])
    assert 0.8 * sum(files) < sum(seconds) * scrubbers.BYTES_PER_SECOND <= sum(files)
    assert world[name].damaged == ""


@pytest.mark.long
@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("segment", range(3))
@pytest.mark.parametrize("at", [-10, -1000, 1000, 20])
def test_damage_is_found_anywhere(world: World, name: str, segment: int, at: int) -> None:
    damage(segments(world, name)[segment], at)
    look(*(world[one] for one in NODES))
    assert [one for one in NODES if world[one].damaged] == [name]


def test_unsynced_frames_are_left_alone(world: World) -> None:
    primary = world["n1"]
    primary.append(numbered_events(primary.next_seq, 10), {})
    damage(segments(world, "n1")[-1], -10)
    look(primary)
    assert primary.damaged == ""


def test_replica_that_forgot_the_checkpoint_is_scrubbed_to_its_end(world: World) -> None:
    """As after a kill: the checkpoint of the others was in its memory."""
    world["n2"].close()
    directory = world.path / "n2" / NAME
    replicas.write(directory, replace(replicas.read(directory), checkpoint=0), Disk())
    world.sites["n2"].again()
    assert world["n2"].safe == 0
    damage(segments(world, "n2")[0], -10)
    look(world["n2"])
    assert world["n2"].damaged


def put_into(segment: Path, raw: bytes) -> None:
    """Replace the file at once."""
    fresh = segment.with_suffix(".fresh")
    fresh.write_bytes(raw)
    fresh.rename(segment)


def test_frame_at_the_place_of_another_is_damage(world: World) -> None:
    first, second, third = (
        frame.to_pybytes() for window in world["n1"].frames(0, 30) for frame in window
    )
    segment = segments(world, "n1")[0]
    raw = segment.read_bytes()
    frames = first + second + third
    assert raw.endswith(frames)
    put_into(segment, raw.replace(frames, second + first + third))
    look(world["n1"])
    assert "found seq 10, expected 0" in world["n1"].damaged


def test_missing_segment_is_damage_unless_it_was_trimmed(world: World) -> None:
    segments(world, "n2")[1].unlink()
    look(world["n2"])
    assert "is missing" in world["n2"].damaged


def test_segment_readable_a_little_later_is_no_damage(world: World) -> None:
    """As while the wire to a disk is away."""
    segment = segments(world, "n1")[1]
    raw = segment.read_bytes()
    damage(segment, -10)
    looking = Scrubber(lambda: [world["n1"]]).scrub()
    for seconds in looking:
        if seconds == scrubbers.AGAIN_SECONDS:
            assert world["n1"].is_suspect
            put_into(segment, raw)
    assert world["n1"].damaged == ""
    assert not world["n1"].is_suspect
    damage(segment, -10)
    assert scrubbers.AGAIN_SECONDS in look(world["n1"]), "it counts from the beginning"
    assert world["n1"].damaged


def second_look(world: World, name: str) -> Iterator[Window]:
    """Scrub again after a read error: the damage is certain now."""
    segment = segments(world, name)[0]
    raw = segment.read_bytes()
    damage(segment, -10)
    assert list(world[name].scrub()) == []
    assert world[name].is_suspect
    put_into(segment, raw)
    return world[name].scrub()


def test_segment_trimmed_meanwhile_is_no_damage_and_the_rest_is_scrubbed(world: World) -> None:
    primary = world["n1"]
    looking = second_look(world, "n1")
    next(looking)
    primary.trim(60)
    assert primary.floor > 30
    assert len(list(looking)) == 1
    assert primary.damaged == ""


def cut(world: World) -> None:
    world["n2"].cut(70)


def cut_what_is_damaged(world: World) -> None:
    damage(segments(world, "n2")[-1], -10)
    world["n2"].cut(60)


def remove(world: World) -> None:
    world["n2"].remove()


@pytest.mark.parametrize("happens", [cut, cut_what_is_damaged, remove])
def test_copy_cut_or_removed_meanwhile_is_no_damage(
    world: World, happens: Callable[[World], None]
) -> None:
    looking = second_look(world, "n2")
    next(looking)
    happens(world)
    list(looking)
    assert world["n2"].damaged == ""


@pytest.mark.slow
def test_copy_that_cannot_be_opened_now_is_scrubbed_next_time(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Held:
        id = "web.n9.0.0a1b2c3d"
        is_suspect = False

        def scrub(self) -> Iterator[Window]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    assert len(list(Scrubber(lambda: [Held(), world["n1"]]).scrub())) == 3
    assert "web.n9.0.0a1b2c3d cannot be scrubbed now" in caplog.text


def test_copy_whose_cut_failed_halfway_is_reopened_and_no_damage(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    site = world.sites["n2"]

    looking = second_look(world, "n2")
    next(looking)
    site.disk.unsynced = True
    with pytest.raises(OSError, match="Input/output"):
        site.journal.cut(70)
    assert "dropped" not in caplog.text
    site.disk.unsynced = False
    *_, last = looking
    assert len(list(last)) == 1, "two frames are gone from its disk"
    assert site.journal.damaged == ""
    world.look(FIRST_SECONDS)
    assert site.journal.next_seq in (70, 90), "it goes on"
    look(site.journal)
    assert site.journal.damaged == ""


def test_scrubber_repeats_by_itself(world: World) -> None:
    passes: list[str] = []

    def journals() -> list[ReplicatedJournal]:
        passes.append("a pass")
        return [world["n1"]]

    scrubber = Scrubber(journals, pass_seconds=0.05, again_seconds=0.05)
    scrubber.start()
    wait_for(lambda: len(passes) > 1, "it does not look again")
    damage(segments(world, "n1")[0], -10)
    wait_for(lambda: bool(world["n1"].damaged), "it does not look again")
    scrubber.stop()
