"""Exactly once into files, with any owner that dies or sleeps at any step.

A collector's every step on ZooKeeper and on the lake is counted, so that it can be cut off, or
overtaken by its successor, before and after each single one. After that another owner finishes the
work, and the lake must hold every event once, ZooKeeper every ack, and nothing else be left.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Batch, Filtered
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.lines import JoinedRange
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize, Scale
from flumeng.config import FlowSpec, parse_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import BatchId, Written
from flumeng.control.zookeeper import ABSENT
from flumeng.platform import file_store
from flumeng.platform.errors import ConflictError, CorruptError, UnavailableError
from tests.testkit.cluster import new_cluster
from tests.testkit.collector import FakePositions, register
from tests.testkit.owner_steps import (
    Baton,
    CrashError,
    SteppingStore,
    Steps,
    TurnTaking,
    Watched,
    crash,
)
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN, flow_folders
from zkschema.records import Commit

FLOW = "web"
JOURNALS = {"web.n1.0.aaaaaaaa": 7, "web.n2.0.bbbbbbbb": 5}
BATCH_EVENTS = 5


class SteppingFileStore:
    """The local disk with one rename a step. It does not sync, which would cost minutes here."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def open_store(self, uri: str) -> tuple[Any, str]:
        return self, uri

    def rename(self, moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        missing = []
        for move in moves:
            self._steps.step("before rename")
            source, target = map(Path, move)
            target.parent.mkdir(exist_ok=True, parents=True)
            if source.exists():
                source.rename(target)
            elif not target.exists():
                missing.append(move)
        self._steps.step("after renames")
        return missing

    def remove_tree(self, path: str) -> None:
        self._steps.step("before remove_tree")
        file_store.LOCAL.remove_tree(path)
        self._steps.step("after remove_tree")

    def make_directory(self, path: str) -> None:
        self._steps.step("before make_directory")
        Path(path).mkdir(parents=True)

    def directories(self, path: str) -> list[str]:
        found = file_store.LOCAL.directories(path)
        self._steps.step("after directories")
        return found

    def exists(self, path: str) -> bool:
        return file_store.LOCAL.exists(path)


class FakePipeline:
    """Writes a file for each range and each of two directories, with one event a line."""

    shareable = False
    intent = None
    trouble = ""
    filters = ""
    outdated = False
    spare_roots: frozenset[str] = frozenset()

    def event_bytes(self) -> None:
        return None

    def filtered(self) -> Filtered:
        return Filtered()

    def splits(self, ranges: Sequence[Range], _scale: Scale) -> int:
        return len(ranges)

    def joined(self, ranges: Sequence[Range]) -> dict[str, JoinedRange]:
        raise NotImplementedError

    def __init__(self, spec: FlowSpec, root: str) -> None:
        self.spec = spec
        self.roots: tuple[str, ...] = (root,)

    def write_into(self, task: ClaimedTask, batch: Batch) -> None:
        try:
            task.settle(batch, self.write(batch.ranges, batch.staging))
        except OSError as error:
            task.settle(batch, error)

    def write(self, ranges: Sequence[Range], staging: Mapping[str, str]) -> list[Written]:
        ((root, directory),) = staging.items()
        files = []
        for piece in ranges:
            for kind in (0, 1):
                name = f"part-{uuid.uuid4().hex}.log"
                seqs = [seq for seq in range(piece.start, piece.end) if seq % 2 == kind]
                lines = "".join(f"{piece.partition} {seq}\n" for seq in seqs)
                Path(directory, name).write_text(lines)
                files.append((f"{directory}/{name}", f"{root}/kind={kind}/{name}"))
        return [Written(sum(piece.events for piece in ranges), tuple(files))]


@cache
def flow_spec(delivery: str) -> FlowSpec:
    return parse_flow(
        f"flow: {FLOW}\nsources: [{{syslog: {{listen: '127.0.0.1:0'}}}}]\n"
        f"delivery: {delivery}\nsinks: [{{files: {{path: /lake}}}}]\n"
    )


@dataclass
class World:
    """One cluster and one lake, with any number of collectors, also at the same time."""

    root: Path
    delivery: str = "exactly-once"
    tree: FakeTree = field(default_factory=FakeTree)

    def __post_init__(self) -> None:
        store = new_cluster(self.tree)
        for folder in flow_folders(FLOW)[1:]:
            self.make(store, folder)
        register(store, FLOW, *JOURNALS)

    def make(self, store: FakeStore, folder: Any) -> None:
        parent = str(folder).rpartition("/")[0]
        if parent not in self.tree.znodes:
            self.tree.znodes[parent] = type(self.tree.znodes["/"])(b"")
        store.write(folder, None, ABSENT)

    def pipeline(self) -> Any:
        return FakePipeline(flow_spec(self.delivery), str(self.root))

    def collect(self, epoch: int, steps: Steps | None = None) -> Steps:
        """Run a collector until all is acked or ``steps`` ends it."""
        steps = steps or Steps()
        assignment = Assignment(FLOW, "collect.0", epoch, 1, "", tuple(JOURNALS))
        pipeline = self.pipeline()
        store = SteppingStore(self.tree, steps)
        task = ClaimedTask(
            assignment,
            store,
            Publisher(store, gap_seconds=0.0),
            pipeline,
            FakePositions(JOURNALS),
            size=BatchSize(BATCH_EVENTS),
            open_store=SteppingFileStore(steps).open_store,
        )
        try:
            while not task.caught_up:
                if task.may_start and task.backlog(eager=True).events:
                    batch = task.start()
                    assert batch
                    pipeline.write_into(task, batch)
                elif task.running:
                    task.commit()
        finally:
            task.close()
        return steps

    def acks(self) -> dict[str, int]:
        found = {
            name: FakeStore(self.tree).read(paths.ack(FLOW, CURSOR_MAIN, name)) for name in JOURNALS
        }
        return {name: ack.value.offset if ack else 0 for name, ack in found.items()}

    def shown(self) -> Counter[str]:
        files = self.root.glob("kind=*/*")
        return Counter(line for file in files for line in file.read_text().splitlines())

    def staged(self) -> list[str]:
        return file_store.LOCAL.directories(str(self.root / "_flumeng"))

    def records(self) -> list[str]:
        return FakeStore(self.tree).children(paths.commits(FLOW))

    def check_visible(self) -> None:
        """At any moment: no event is visible twice, and invisible events are not acked, or their
        commit is decided."""
        assert max(self.shown().values(), default=0) <= 1
        if not self.records():
            acked = {f"{name} {seq}" for name, ack in self.acks().items() for seq in range(ack)}
            assert acked <= self.shown().keys()

    def check_done(self) -> None:
        self.check_shown()
        assert self.staged() == []

    def check_shown(self) -> None:
        everything = [f"{name} {seq}" for name, end in JOURNALS.items() for seq in range(end)]
        assert self.shown() == Counter(everything)
        assert self.acks() == JOURNALS
        assert self.records() == []


def worlds(tmp_path: Path) -> Iterator[World]:
    number = 0
    while True:
        number += 1
        yield World(tmp_path / f"lake-{number}")


def number_of_steps(tmp_path: Path) -> int:
    world = World(tmp_path / "counted")
    count = world.collect(1).count
    world.check_done()
    return count


def test_undisturbed_collector_shows_every_event_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    steps = world.collect(1)
    world.check_done()
    assert {re.sub("^(before|after) ", "", name) for name in steps.names} >= {
        "commit",
        "rename",
        "remove_tree",
        "make_directory",
        "directories",
    }


@pytest.mark.slow
@pytest.mark.parametrize("next_epoch", [1, 2])
def test_collector_may_die_at_any_step(tmp_path: Path, next_epoch: int) -> None:
    fresh = worlds(tmp_path)
    for at in range(number_of_steps(tmp_path)):
        world = next(fresh)
        with pytest.raises(CrashError):
            world.collect(1, Steps(at, crash))
        world.check_visible()
        world.collect(next_epoch)
        world.check_done()


@pytest.mark.slow
def test_successor_may_die_at_any_step_too(tmp_path: Path) -> None:
    fresh = worlds(tmp_path)
    for at in range(number_of_steps(tmp_path)):
        for then in range(0, 40, 5):
            world = next(fresh)
            with pytest.raises(CrashError):
                world.collect(1, Steps(at, crash))
            try:
                world.collect(2, Steps(then, crash))
            except CrashError:
                world.check_visible()
                world.collect(3)
            world.check_done()


@pytest.mark.slow
@pytest.mark.parametrize("next_epoch", [1, 2])
def test_collector_may_sleep_at_any_step_while_another_does_all_the_work(
    tmp_path: Path, next_epoch: int
) -> None:
    """The sleeper wakes up believing that it owns the task. It must end fenced or find all done."""
    fresh = worlds(tmp_path)
    for at in range(number_of_steps(tmp_path)):
        world = next(fresh)

        def overtake(world: World = world) -> None:
            world.collect(next_epoch)
            world.check_shown()  # the sleeper's executors may still write into its staging

        late(world, 1, Steps(at, overtake))
        world.check_visible()
        world.collect(next_epoch + 1)
        world.check_done()


@pytest.mark.long
def test_collector_may_sleep_at_any_step_while_another_dies_at_any_step(tmp_path: Path) -> None:
    fresh = worlds(tmp_path)
    for at in range(number_of_steps(tmp_path)):
        for then in range(1, 40, 4):
            world = next(fresh)

            def overtake(world: World = world, then: int = then) -> None:
                with pytest.raises(CrashError):
                    world.collect(2, Steps(then, crash))

            try:
                late(world, 1, Steps(at, overtake))
            except pytest.fail.Exception:
                continue  # the successor had fewer steps than that
            world.check_visible()
            world.collect(3)
            world.check_done()


@pytest.mark.long
def test_two_owners_may_take_turns_at_any_two_steps(tmp_path: Path) -> None:
    """A third owner comes while the second is in the middle, the second wakes before the first."""
    fresh = worlds(tmp_path)
    for at in range(number_of_steps(tmp_path)):
        for then in range(0, 40, 5):
            world = next(fresh)

            def overtake(world: World = world, then: int = then) -> None:
                late(world, 2, Steps(then, lambda: late(world, 3, Steps())))

            late(world, 1, Steps(at, overtake))
            world.check_visible()
            world.collect(4)
            world.check_done()


def test_owner_that_wakes_up_late_removes_no_staged_file_of_a_later_one(tmp_path: Path) -> None:
    """It claimed, slept while a later owner staged, and slept again while that one decided."""
    names = World(tmp_path / "counted").collect(1).names
    decides = [place for place, name in enumerate(names) if name == "before commit"][1]
    world = World(tmp_path / "lake")
    with pytest.raises(CrashError):
        world.collect(1, Steps(decides, crash))
    assert world.staged() != []
    staged, may_decide, decided, may_show = (threading.Event() for _ in range(4))

    def stop_twice(steps: Steps, name: str) -> None:
        if steps.names.count("before commit") == 2 and name == "before commit":
            staged.set()
            assert may_decide.wait(60)
        elif steps.names.count("before rename") == 1 and name == "before rename":
            decided.set()
            assert may_show.wait(60)

    later = threading.Thread(target=world.collect, args=(3, Watched(watch=stop_twice)))

    def let_the_later_one_pass(steps: Steps, name: str) -> None:
        if steps.names.count("after commit") == 1 and name == "after commit":
            later.start()
            assert staged.wait(60)
        elif steps.names.count("before remove_tree") == 1 and name == "before remove_tree":
            may_decide.set()
            assert decided.wait(60)

    late(world, 2, Watched(watch=let_the_later_one_pass))
    may_show.set()
    later.join()
    world.check_shown()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(300))
def test_three_owners_may_take_turns_in_any_order(tmp_path: Path, seed: int) -> None:
    """Each step of each of three owners may be followed by any step of any other, or by death."""
    world = World(tmp_path)
    baton = Baton(random.Random(seed), owners=3)

    def live(number: int) -> None:
        with contextlib.suppress(CrashError):
            late(world, number // 2, TurnTaking(baton=baton, number=number))
        baton.leave(number)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    world.check_visible()
    world.collect(9)
    world.check_done()


@pytest.mark.slow
def test_lost_answer_is_settled_by_comparing_or_by_claiming_again(tmp_path: Path) -> None:
    """A write may have happened although the caller got an error that ZooKeeper is away."""
    raised = 0

    def lose() -> None:
        raise UnavailableError("no answer")

    fresh = worlds(tmp_path)
    for at in range(number_of_steps(tmp_path)):
        world = next(fresh)
        try:
            world.collect(1, Steps(at, lose))
        except UnavailableError:
            raised += 1
        world.collect(1)
        world.check_done()
    assert raised


def test_file_removed_by_its_reader_does_not_stop_recovery(tmp_path: Path) -> None:
    """Shown, then compacted by a reader, before the record was removed: not lost, not an error."""
    names = World(tmp_path / "counted").collect(1).names
    world = World(tmp_path / "lake")
    with pytest.raises(CrashError):
        world.collect(1, Steps(names.index("after renames"), crash))
    taken = next(world.root.glob("kind=0/*"))
    content = taken.read_text()
    taken.unlink()
    world.collect(1)
    taken.write_text(content)
    world.check_done()


def test_missing_staged_files_of_a_decided_batch_are_an_error(tmp_path: Path) -> None:
    names = World(tmp_path / "counted").collect(1).names
    world = World(tmp_path / "lake")
    with pytest.raises(CrashError):
        world.collect(1, Steps(names.index("before rename"), crash))
    shutil.rmtree(world.root / "_flumeng")
    with pytest.raises(Exception, match="neither staged nor published"):
        world.collect(1)
    assert world.records() != []


def test_unfinishable_commit_stops_its_own_task_only(tmp_path: Path) -> None:
    """Of a task that is on a host which died with its disk, or in a store that does not answer."""
    world, store = World(tmp_path), FakeStore()
    store.tree = world.tree
    gone = str(tmp_path / "_flumeng" / f"{next(iter(JOURNALS))}.1.gone")
    moves = ((f"{gone}/part-1", f"{tmp_path}/kind=0/part-1"),)
    unfinished = paths.commit(FLOW, "collect.1@1")
    store.write(unfinished, Commit(epoch=1, staging=(gone,), files=moves), ABSENT)
    world.collect(1)
    assert (world.acks(), world.records()) == (JOURNALS, ["collect.1@1"])
    store.write(
        paths.commit(FLOW, "collect.0@1"), Commit(epoch=1, staging=(gone,), files=moves), ABSENT
    )
    with pytest.raises(CorruptError, match=f"ack drop {FLOW} collect.0@1"):
        world.collect(2)


def test_staged_files_of_an_unfinished_commit_are_left_alone(tmp_path: Path) -> None:
    """The journal of another task's commit is ours by now; half of its files cannot be renamed."""
    world, store = World(tmp_path), FakeStore()
    store.tree = world.tree
    staged = tmp_path / "_flumeng" / f"{next(iter(JOURNALS))}.1.half"
    staged.mkdir(parents=True)
    (staged / "part-1").write_text("x")
    (tmp_path / "obstacle").write_text("a file where a directory should be")
    moves = ((f"{staged}/part-1", f"{tmp_path}/obstacle/part-1"),)
    record = Commit(epoch=1, staging=(str(staged),), files=moves)
    store.write(paths.commit(FLOW, "collect.1@1"), record, ABSENT)
    world.collect(1)
    assert world.acks() == JOURNALS
    assert (staged / "part-1").read_text() == "x"
    (tmp_path / "obstacle").unlink()
    world.collect(2)
    assert (tmp_path / "obstacle" / "part-1").read_text() == "x"
    assert (world.records(), world.staged()) == ([], [])


def test_another_clusters_staging_is_left_alone(tmp_path: Path) -> None:
    """The same flow in two data centres may write into one lake: journals tell them apart."""
    world = World(tmp_path)
    foreign = tmp_path / "_flumeng" / "web.n1.0.cccccccc.1.0123"
    foreign.mkdir(parents=True)
    world.collect(1)
    assert foreign.exists()


@pytest.mark.parametrize("at_step", ["after commit", "before rename", "after renames"])
def test_at_least_once_may_repeat_a_batch_but_loses_none(tmp_path: Path, at_step: str) -> None:
    names = World(tmp_path / "counted", "at-least-once").collect(1).names
    world = World(tmp_path / "lake", "at-least-once")
    with pytest.raises(CrashError):
        world.collect(1, Steps(names.index(at_step), crash))
    world.collect(1)
    assert sum(world.shown().values()) >= sum(JOURNALS.values()) == len(world.shown())
    assert world.staged() == []


class TakingPipeline(FakePipeline):
    """Writes nothing; its sink takes a batch at a commit of its own, as tables do."""

    def __init__(self, taken: set[str]) -> None:
        super().__init__(flow_spec("at-least-once"), "")
        self.roots = ()
        self._taken = taken

    def write(self, ranges: Sequence[Range], staging: Mapping[str, str]) -> list[Written]:
        assert not staging
        events = [f"{r.partition} {seq}" for r in ranges for seq in range(r.start, r.end)]

        def commit(number: BatchId | None) -> None:
            assert number is None, "at least once needs no number"
            self._taken.update(events)

        return [Written(len(events), commit=commit)]


@dataclass
class WorldOfTable(World):
    taken: set[str] = field(default_factory=set)

    def pipeline(self) -> Any:
        return TakingPipeline(self.taken)


def test_at_least_once_a_table_takes_a_batch_before_its_acks_move(tmp_path: Path) -> None:
    everything = {f"{name} {seq}" for name, end in JOURNALS.items() for seq in range(end)}
    for at in range(WorldOfTable(tmp_path).collect(1).count):
        world = WorldOfTable(tmp_path)
        with pytest.raises(CrashError):
            world.collect(1, Steps(at, crash))
        world.collect(1)
        assert world.acks() == JOURNALS
        assert world.taken == everything


@pytest.mark.slow
def test_at_most_once_may_lose_a_batch_but_repeats_none(tmp_path: Path) -> None:
    for at in range(World(tmp_path / "counted", "at-most-once").collect(1).count):
        world = World(tmp_path / f"lake-{at}", "at-most-once")
        with pytest.raises(CrashError):
            world.collect(1, Steps(at, crash))
        world.collect(1)
        assert max(world.shown().values()) == 1
        assert world.acks() == JOURNALS
        assert len(world.shown()) >= sum(JOURNALS.values()) - BATCH_EVENTS


def late(world: World, epoch: int, steps: Steps) -> None:
    """Run a collector that may be overtaken: fencing, or the loss of its staging, ends it."""
    try:
        world.collect(epoch, steps)
    except (ConflictError, UnavailableError, OSError):
        return
