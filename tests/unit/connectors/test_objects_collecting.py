"""Lanes as a task reads them: each line once, and a bad object holds up no other."""

from __future__ import annotations

import gzip
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from flumeng.agent.collector import intents
from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Batch
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.partitions import Partitions
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize
from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.config import parse_flow
from flumeng.connectors.api.finding import FindingTask
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.api.sink import Written
from flumeng.connectors.objects.finder import ObjectsFinder
from flumeng.connectors.objects.input import ObjectsInput
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.ranged.reading import source_of
from flumeng.connectors.ranged.routing import Inputs
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import items
from flumeng.control.zookeeper import Put
from flumeng.platform.errors import CorruptError
from tests.testkit.cluster import new_cluster
from tests.testkit.collector import ScriptedPipeline
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths
from zkschema.records import Intent

FLOW = """\
flow: web
sources: [objects: {{paths: ["{directory}/*"], settle_seconds: 0, discovery_seconds: 0.5}}]
delivery: exactly-once
sinks: [files: {{path: /lake}}]
"""
BY_BATCH = FLOW.replace(
    "files: {{path: /lake}}", 'http: {{url: "http://127.0.0.1/", idempotent: true}}'
)


class World:
    """A flow that reads the objects of a directory, its discovery task, and one collect task."""

    def __init__(self, directory: Path, flow: str = FLOW) -> None:
        self.directory = directory
        self.store = new_cluster()
        text = flow.format(directory=directory)
        apply_flow(Operator(self.store, "test", "", 0.0), text)
        self.text = text
        self.spec = parse_flow(text)
        self.now = 0.0
        source = source_of(self.spec, ObjectsSource)
        assert source is not None
        finder = ObjectsFinder(source, self.store, FindingTask("web", 1))
        self.discovery = DiscoveryTask(self.store, "web", 1, [finder])
        self.input = Inputs({"objects": ObjectsInput(self.store)})
        self.output: Counter[bytes] = Counter()
        self.ids: Counter[tuple[str, int]] = Counter()
        self.troubles: set[str] = set()
        self.epoch = 0
        self.partitions = self._partitions()

    def _partitions(self) -> Partitions:
        return Partitions(self.input.positions(lambda: None), clock=lambda: self.now)

    def claim(self) -> ClaimedTask:
        """Claim the task as another owner."""
        self.epoch += 1
        self.partitions.close()
        self.partitions.open(self.spec)
        return ClaimedTask(
            Assignment("web", "0", self.epoch, 1, "", tuple(self.discovery.partitions)),
            self.store,
            Publisher(self.store, gap_seconds=0.0),
            ScriptedPipeline(self.spec, intent=self.decides),
            self.partitions,
            size=BatchSize(1_000_000),
        )

    def started(self) -> Batch:
        """Start a batch of all readable ranges as another owner."""
        deadline, task = time.monotonic() + PATIENCE_SECONDS, self.claim()
        while (batch := task.start(1_000_000)) is None:
            assert time.monotonic() < deadline, self.partitions.trouble
            self.now += 0.5
            time.sleep(0.01)
        return batch

    def collect(self, until: Callable[[], bool]) -> None:
        """Write batches, each as another owner, until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        task = self.claim()
        while not until():
            assert time.monotonic() < deadline, (self.troubles, sum(self.output.values()))
            batch = task.start(2000)
            if self.partitions.trouble:
                self.troubles.add(self.partitions.trouble)
            if batch is None:
                self.now += 0.5
                time.sleep(0.01)
                continue
            try:
                rows = self.read(batch) if not batch.gaps else []
            except UnreadableError as error:
                self.partitions.stop(error)
            else:
                task.settle(batch, [Written(len(rows))])
                task.commit()
                self.output.update(body for body, _, _ in rows)
                self.ids.update((journal, seq) for _, journal, seq in rows)
            task = self.claim()

    def tried(self, task: ClaimedTask) -> ClaimedTask:
        """Return when no place is probed any more, or nothing can be read for a second."""
        deadline = time.monotonic() + 1.5
        while task.backlog(eager=True) and (self.partitions.trouble or not task.caught_up):
            if time.monotonic() > deadline:
                break
            self.now += 0.5
            time.sleep(0.01)
        return task

    def read(self, batch: object) -> list[tuple[bytes, str, int]]:
        reader = self.input.reader(self.spec)
        assert reader is not None
        return [
            (row["body"], row["journal"], row["seq"])
            for piece in batch.ranges  # type: ignore[attr-defined]
            for part in reader.read(piece, batch.addresses[piece.partition])  # type: ignore[attr-defined]
            for row in part.select(["body", "journal", "seq"]).to_pylist()
        ]

    @property
    def decides(self) -> Literal["before"] | None:
        return "before" if "idempotent" in self.text else None

    def intent(self) -> Intent:
        """The batch that was decided last."""
        found = intents.read(self.store, "web", "0")
        assert found is not None
        return found

    def failures(self) -> dict[str, int]:
        """Name -> the offset up to which it was read."""
        names = self.store.children(paths.queue_failures("web"))
        found = self.store.read_many([paths.queue_failure("web", name) for name in names])
        return {Path(one.value.location).name: one.value.position for one in found if one}


def lines(name: str, count: int) -> list[bytes]:
    return [b"%s line %d" % (name.encode(), n) for n in range(count)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_each_line_of_each_object_is_read_once(world: World) -> None:
    wanted: list[bytes] = []
    for number, count in enumerate([0, 1, 7, 3000, 40_000]):
        name = f"f{number}"
        found = lines(name, count)
        data = b"\n".join(found)
        (world.directory / name).write_bytes(data)
        (world.directory / f"{name}.gz").write_bytes(gzip.compress(data + b"\n" if data else b""))
        wanted += found * 2
    world.discovery.discover()
    world.collect(lambda: sum(world.output.values()) >= len(wanted))
    assert world.output == Counter(wanted)
    assert set(world.ids.values()) == {1}
    assert not world.troubles


@pytest.mark.slow
def test_damaged_object_is_read_as_far_as_possible_and_given_up(world: World) -> None:
    good, bad = lines("good", 5000), lines("bad", 20_000)
    (world.directory / "good").write_bytes(b"\n".join(good))
    packed = gzip.compress(b"\n".join(bad))
    (world.directory / "bad.gz").write_bytes(packed[: len(packed) // 2])
    world.discovery.discover()
    world.collect(lambda: bool(world.failures()))
    read = [line for line in world.output if line.startswith(b"bad")]
    position = world.failures()["bad.gz"]
    assert 0 < len(read) < len(bad)
    assert position == sum(len(line) + 1 for line in bad[: len(read)])
    assert world.output == Counter(good + bad[: len(read)])
    assert any("stands still at item" in trouble for trouble in world.troubles)


@pytest.mark.slow
def test_object_removed_before_it_is_read_is_given_up_and_its_lane_continues(world: World) -> None:
    for number in range(40):
        (world.directory / f"f{number}").write_bytes(b"\n".join(lines(f"f{number}", 3)))
    world.discovery.discover()
    (world.directory / "f3").unlink()
    (world.directory / "f20").write_bytes(b"something else")
    world.collect(lambda: len(world.failures()) == 2 and sum(world.output.values()) >= 38 * 3)
    assert world.failures() == {"f3": 0, "f20": 0}
    assert sum(world.output.values()) == 38 * 3
    assert set(world.output.values()) == {1}


@pytest.mark.slow
def test_consecutive_damaged_objects_are_given_up_together(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    count = 260
    for number in range(count):
        name = f"f{number:03}.gz"
        good = number in (100, 259)
        data = gzip.compress(b"\n".join(lines(name, 3)))
        (world.directory / name).write_bytes(data if good else data[:9])
    world.discovery.discover()
    world.collect(lambda: len(world.failures()) == count - 2 and sum(world.output.values()) >= 6)
    assert world.output == Counter(lines("f100.gz", 3) + lines("f259.gz", 3))
    gaps = [each for each in caplog.messages if each.startswith("gap:")]
    assert len(gaps) < 30, "each of them was given up by itself"
    assert set(world.failures().values()) == {0}


@pytest.mark.slow
def test_lines_before_the_damage_are_read_also_when_it_is_given_up_first(world: World) -> None:
    bad = lines("bad", 20_000)
    packed = gzip.compress(b"\n".join(bad))
    (world.directory / "bad.gz").write_bytes(packed[: len(packed) // 2])
    world.discovery.discover()
    task = world.claim()
    batch = None
    while batch is None:
        batch = task.start()
    with pytest.raises(UnreadableError) as damage:
        world.read(batch)
    world.partitions.stop(damage.value)
    starts = {batch.ranges[0].partition: batch.ranges[0].start}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while world.partitions.of(starts)[batch.ranges[0].partition].gone_from == 0:
        assert time.monotonic() < deadline
        world.now += 0.5
        time.sleep(0.01)
    world.collect(lambda: bool(world.failures()))
    position = world.failures()["bad.gz"]
    assert position == sum(len(line) + 1 for line in world.output) > 0


@pytest.mark.slow
def test_repeated_batch_leaves_out_objects_that_became_unreadable(tmp_path: Path) -> None:
    """The target knows batches by number: a decided batch is repeated, and must end some time."""
    world = World(tmp_path, BY_BATCH)
    good, bad = lines("good", 50), lines("bad", 20_000)
    (world.directory / "a").write_bytes(b"\n".join(good))
    packed = gzip.compress(b"\n".join(bad))
    (world.directory / "bad.gz").write_bytes(packed[: len(packed) // 2])
    (world.directory / "gone").write_bytes(b"\n".join(lines("gone", 9)))
    (world.directory / "last").write_bytes(b"\n".join(lines("last", 9)))
    world.discovery.discover()
    task, batch = world.claim(), None
    while batch is None:
        batch = task.start(1_000_000)
    decided = world.intent()
    (world.directory / "gone").unlink()
    world.collect(lambda: not world.intent().ranges)
    assert world.intent().number == decided.number == 1
    assert world.failures().keys() == {"bad.gz", "gone"}
    assert world.failures()["bad.gz"] == sum(
        len(line) + 1 for line in world.output if line.startswith(b"bad")
    )
    assert set(good + lines("last", 9)) < world.output.keys()
    assert set(world.output.values()) == {1}
    assert task.planned == world.claim().planned


def damage_of(world: World, ranges: Sequence[Range]) -> UnreadableError:
    """The damage that a task meets now in a batch of these ranges."""
    (piece,) = ranges
    reach = world.partitions.of({piece.partition: piece.start})[piece.partition]
    assert reach.contents is not None
    reader = world.input.reader(world.spec)
    assert reader is not None
    with pytest.raises(UnreadableError) as damage:
        list(reader.read(piece, reach.contents.address(piece.start, piece.end)))
    return damage.value


def give_up(world: World, starts: dict[str, int], damage: UnreadableError) -> None:
    """Give the place up, as after a batch that has failed there."""
    world.partitions.stop(damage)
    deadline = time.monotonic() + PATIENCE_SECONDS
    name = damage.partition
    while world.partitions.of(starts)[name].gone_from != damage.offset:
        assert time.monotonic() < deadline
        world.now += 0.5
        time.sleep(0.01)


@pytest.mark.slow
def test_failed_objects_behind_a_repeated_batch_are_recorded_behind_it(tmp_path: Path) -> None:
    """Damaged objects are given up together, far beyond the end of the batch that met the first."""
    world = World(tmp_path, BY_BATCH.replace("settle_seconds", "lanes: 1, settle_seconds"))
    for number in range(12):
        (world.directory / f"f{number:02}").write_bytes(b"\n".join(lines(f"f{number:02}", 9)))
    world.discovery.discover()
    task, batch = world.claim(), None
    while batch is None:
        batch = task.start(300)
    (end,) = (items.number_of(piece.end) for piece in batch.ranges)
    assert 3 < end < 10, "it ends within the run"
    for number in range(2, 11):
        (world.directory / f"f{number:02}").unlink()
    gone = {f"f{number:02}": 0 for number in range(2, 11)}
    world.collect(lambda: world.failures() == gone and sum(world.output.values()) >= 27)
    assert world.output.keys() == {*lines("f00", 9), *lines("f01", 9), *lines("f11", 9)}
    assert set(world.output.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("behind", [3, 7])
def test_failures_found_out_of_order_are_all_recorded(tmp_path: Path, behind: int) -> None:
    """Parts of a batch are read side by side: the damage that is met first may lie behind more."""
    world = World(tmp_path, FLOW.replace("settle_seconds", "lanes: 1, settle_seconds"))
    for number in range(9):
        (world.directory / f"f{number:02}").write_bytes(b"\n".join(lines(f"f{number:02}", 9)))
    world.discovery.discover()
    task, batch = world.claim(), None
    while batch is None:
        batch = task.start()
    (whole,) = batch.ranges
    starts = {whole.partition: whole.start}
    (world.directory / f"f{behind:02}").unlink()
    give_up(world, starts, damage_of(world, [whole]))
    (world.directory / "f02").unlink()
    give_up(world, starts, damage_of(world, [whole]))
    world.collect(lambda: sum(world.output.values()) >= 7 * 9)
    assert world.failures() == {"f02": 0, f"f{behind:02}": 0}
    assert set(world.output.values()) == {1}


@pytest.mark.slow
def test_batch_that_ends_inside_an_unreadable_object_records_its_beginning(tmp_path: Path) -> None:
    """The owner that continues behind it learns of later failures only."""
    world = World(tmp_path, BY_BATCH)
    text = b"\n".join(lines("gone", 100_000))
    (world.directory / "gone").write_bytes(text)
    world.discovery.discover()
    task, batch = world.claim(), None
    while batch is None:
        batch = task.start(2_000)
    end = batch.ranges[0].end
    assert 0 < end < len(text), "the batch ends within the object"
    (world.directory / "gone").unlink()
    world.collect(lambda: not world.intent().ranges)
    assert world.failures() == {"gone": 0}
    world.partitions = world._partitions()
    world.collect(lambda: world.intent().number == 2 and not world.intent().ranges)
    assert world.failures() == {"gone": 0}


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["skip", "retry"])
def test_operators_decision_survives_a_second_failure(tmp_path: Path, wanted: str) -> None:
    """The item ends one batch and begins the next; the wanted action on it stays."""
    world = World(tmp_path, BY_BATCH)
    (world.directory / "gone").write_bytes(b"\n".join(lines("gone", 100_000)))
    world.discovery.discover()
    task, batch = world.claim(), None
    while batch is None:
        batch = task.start(2_000)
    (world.directory / "gone").unlink()
    world.collect(lambda: not world.intent().ranges)
    assert world.failures() == {"gone": 0}
    task, batch = world.claim(), None
    while batch is None:
        batch = task.start(2_000)
    give_up(
        world, {batch.ranges[0].partition: batch.ranges[0].start}, damage_of(world, batch.ranges)
    )
    (name,) = world.store.children(paths.queue_failures("web"))
    failure = world.store.read(paths.queue_failure("web", name))
    assert failure is not None
    path = paths.queue_failure("web", name)
    world.store.commit([Put(path, replace(failure.value, wanted=wanted), failure.version)])
    world.collect(lambda: world.intent().number == 2 and not world.intent().ranges)
    again = world.store.read(path)
    assert again is not None
    assert (again.value.wanted, again.value.position) == (wanted, 0)


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 1])
def test_left_out_object_stays_out_when_it_is_there_again(tmp_path: Path, others: int) -> None:
    """The target has the batch by its number, and takes nothing more of it."""
    world = World(tmp_path, BY_BATCH.replace("settle_seconds", "lanes: 1, settle_seconds"))
    for name in "ab"[1 - others :]:
        (world.directory / name).write_bytes(b"\n".join(lines(name, 9)))
    world.discovery.discover()
    (whole,) = world.started().ranges
    path, aside = world.directory / "b", tmp_path / "aside"
    path.rename(aside)
    damage = damage_of(world, [whole])
    world.partitions.stop(damage)
    world.started()
    assert world.intent().left_out == {whole.partition: ((damage.offset, whole.end),)}
    aside.rename(path)  # the writer of the batch has died before its ack
    world.partitions = world._partitions()
    world.collect(lambda: not world.intent().ranges)
    assert world.failures() == {"b": 0}
    assert world.output == Counter(lines("a", 9 * others))
    assert world.intent().left_out == {}


def test_left_out_items_that_are_not_visible_yet_are_waited_for(world: World) -> None:
    """The session's server may lag behind the one that has the decision."""
    (world.directory / "a").write_bytes(b"\n".join(lines("a", 9)))
    world.discovery.discover()
    positions = world.input.positions(lambda: None)
    positions.open(world.spec)
    (name,) = [one for one in world.discovery.partitions if one.startswith("lane.0.")]
    unseen = items.offset_of(7)
    positions.leave_out({name: [(unseen, unseen + 5)]})
    reach = wait_for(lambda: positions.of([name]).get(name))
    assert reach.safe <= unseen
    assert reach.left_out == ()
    positions.close()


@pytest.mark.slow
def test_damage_in_two_lanes_is_resolved_for_any_duration_of_batches(world: World) -> None:
    """Each batch is begun when all that could be tried was tried, and fails at one place."""
    for name in ("good", "bad1.gz", "bad2.gz", "bad3.gz"):
        packed = gzip.compress(b"\n".join(lines(name, 5000)))
        size = len(packed) // 2 if name.startswith("bad") else len(packed)
        (world.directory / name).write_bytes(packed[:size])
    world.discovery.discover()
    for _ in range(12):
        task = world.claim()
        while (batch := world.tried(task).start()) is not None:
            try:
                rows = world.read(batch) if not batch.gaps else []
            except UnreadableError as error:
                world.partitions.stop(error)
                break
            task.settle(batch, [Written(len(rows))])
            task.commit()
    assert world.failures().keys() == {"bad1.gz", "bad2.gz", "bad3.gz"}


@pytest.mark.slow
def test_probe_that_outlives_its_claim_reports_the_damage(world: World) -> None:
    packed = gzip.compress(b"\n".join(lines("bad", 5000)))
    (world.directory / "bad.gz").write_bytes(packed[: len(packed) // 2])
    world.discovery.discover()
    batch = world.tried(world.claim()).start()
    assert batch is not None
    (piece,) = batch.ranges
    with pytest.raises(UnreadableError) as damage:
        world.read(batch)
    positions = world.input.positions(lambda: None)
    positions.open(world.spec)
    wait_for(lambda: piece.partition in positions.of([piece.partition]))
    probe = positions.probe(piece.partition, "", damage.value.offset, piece.end)
    positions.close()
    with pytest.raises(CorruptError, match="the gzip data is damaged"):
        probe.result(PATIENCE_SECONDS)
