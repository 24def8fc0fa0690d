"""The discovery task of objects: each becomes an item of the queue once, with a crash at any
step."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flumeng.connectors.api.finding import Before, FindingTask
from flumeng.connectors.objects.finder import (
    APPENDED_BYTES,
    SEARCH_SECONDS,
    ObjectsFinder,
    Surroundings,
)
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.control.commands.flows import apply_flow, delete_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.queues import decide
from flumeng.control.queries.queues import lanes_of, overview
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.items import Item
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import ABSENT
from flumeng.platform.errors import ConflictError, CorruptError, UnavailableError, UserError
from tests.testkit.cluster import new_cluster
from tests.testkit.owner_steps import CrashError, SteppingStore, Steps, crash
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths
from zkschema.records import Ack, QueueFailure

FLOW = """\
flow: web
sources: [objects: {{paths: ["{directory}/*"], settle_seconds: 0}}]
sinks: [noop]
"""
BY = ("test", "", 0.0)


class Queue:
    """A flow with objects in a directory, and its queue in a store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tree = FakeTree()
        self.store = new_cluster(self.tree)
        apply_flow(Operator(self.store, *BY), FLOW.format(directory=directory))

    def finder(self, store: FakeStore | None = None, epoch: int = 1, **more: Any) -> ObjectsFinder:
        most = more.pop("most_waiting", 1000)
        clock = more.pop("clock", time.monotonic)
        options = {"settle_seconds": 0.0, "lanes": 3, **more}
        source = ObjectsSource(paths=(f"{self.directory}/*",), **options)
        task = FindingTask("web", epoch)
        around = Surroundings(clock=clock)
        return ObjectsFinder(source, store or self.store, task, around, most_waiting=most)

    def write(self, *files: str, text: str = "a line\n") -> None:
        for name in files:
            (self.directory / name).write_text(text)

    def items(self) -> list[Item]:
        """All kept items, lane by lane; each lane's are numbered without a gap."""
        found = []
        head = queues.head(self.store, "web")
        assert head is not None
        for lane, one in queues.lanes(self.store, "web", head.value, head.value.next).items():
            own = [
                item
                for segment in queues.segments(self.store, "web", lane, one.segments)
                for item in items.of_segment(segment.value)  # type: ignore[union-attr]
            ]
            numbers = [item.number for item in own]
            assert numbers == list(range(one.next - len(own), one.next)), lane
            found += own
        return found

    @property
    def id(self) -> str:
        head = queues.head(self.store, "web")
        assert head is not None
        return head.value.id

    def names(self) -> Counter[str]:
        return Counter(Path(item.location).name for item in self.items())

    def ack(self, lane: str, offset: int) -> None:
        path = ack_path("web", queues.lane_partition(lane, self.id))
        before = self.store.read(path)
        self.store.write(path, Ack(epoch=1, offset=offset), before.version if before else ABSENT)

    def fail(self, file: str, name: str = "0.0") -> None:
        """Record a failed item with the ack, as the lane's owner does."""
        record = QueueFailure(
            location=f"{self.directory}/{file}",
            size=7,
            modified=5,
            position=3,
            why="bits",
            time=1.0,
        )
        self.store.write(paths.queue_failure("web", name), record, ABSENT)


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path)


def test_each_object_becomes_one_item(queue: Queue) -> None:
    queue.write("a", "b", "c")
    finder = queue.finder(discovery_seconds=0.0)
    found = finder.find(Before())
    assert found.offers.keys() == {queues.lane_partition(n, queue.id) for n in "012"}
    assert queue.names() == {"a": 1, "b": 1, "c": 1}
    queue.write("d")
    finder.find(Before())
    queue.finder(epoch=2).find(Before())
    assert queue.names() == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_rewritten_object_is_another_item(queue: Queue) -> None:
    queue.write("a")
    queue.finder().find(Before())
    queue.write("a", text="other text\n")
    queue.finder(epoch=2).find(Before())
    assert queue.names() == {"a": 2}


def test_rewritten_object_is_ignored_with_rewritten_ignore(queue: Queue) -> None:
    queue.write("a")
    queue.finder(rewritten="ignore").find(Before())
    queue.write("a", text="other text\n")
    queue.finder(epoch=2, rewritten="ignore").find(Before())
    assert queue.names() == {"a": 1}


def a_to_d(directory: Path) -> Queue:
    directory.mkdir()
    queue = Queue(directory)
    queue.write("a", "b", "c", "d")
    return queue


@pytest.mark.parametrize("order", ["any", "name", "modified"])
def test_object_is_an_item_once_though_discovery_dies_at_any_step(
    tmp_path: Path, order: str
) -> None:
    steps = Steps()
    queue = a_to_d(tmp_path / "whole")
    queue.finder(SteppingStore(queue.tree, steps), order=order).find(Before())
    assert steps.count > 4
    for at in range(steps.count):
        queue = a_to_d(tmp_path / str(at))
        crashing = SteppingStore(queue.tree, Steps(at, crash))
        with pytest.raises(CrashError):
            queue.finder(crashing, order=order).find(Before())
        queue.write("e")
        queue.finder(epoch=2, order=order).find(Before())
        assert queue.names() == dict.fromkeys("abcde", 1), steps.names[at]


def test_an_owner_that_wakes_up_late_appends_nothing(queue: Queue) -> None:
    queue.write("a")
    old = queue.finder(discovery_seconds=0.0)
    old.find(Before())
    queue.write("b")
    queue.finder(epoch=2).find(Before())
    queue.write("c")
    with pytest.raises(ConflictError):
        old.find(Before())
    assert queue.names() == {"a": 1, "b": 1}
    old.find(Before())
    assert queue.names() == {"a": 1, "b": 1, "c": 1}


def test_acked_items_are_removed_and_not_listed_again(queue: Queue) -> None:
    queue.write(*(f"f{n}" for n in range(9)))
    finder = queue.finder(discovery_seconds=0.0)
    finder.find(Before())
    queue.ack("0", items.offset_of(3))
    queue.ack("1", items.offset_of(2, 5))
    finder.find(Before())
    assert len(queue.items()) == 6, "a segment goes when all of it is acked"
    queue.ack("1", items.offset_of(3))
    finder.find(Before())
    assert len(queue.items()) == 3


def test_no_more_items_are_listed_than_readers_need(queue: Queue) -> None:
    queue.write(*(f"f{n:02}" for n in range(40)))
    finder = queue.finder(most_waiting=12, discovery_seconds=0.0)
    assert finder.find(Before()).soon
    assert len(queue.items()) == 12
    finder.find(Before())
    assert len(queue.items()) == 12
    for lane in "012":
        queue.ack(lane, items.offset_of(4))
    finder.find(Before())
    assert len(queue.items()) == 12
    assert len(queue.names() & Counter(f"f{n:02}" for n in range(40))) == 12


def test_failed_item_is_retried_from_where_it_could_not_be_read(queue: Queue) -> None:
    queue.write("bad")
    finder = queue.finder(rewritten="ignore", discovery_seconds=0.0)
    finder.find(Before())
    queue.fail("bad")
    assert decide(Operator(queue.store, *BY), "web", [], "retry") == ["0.0"]
    finder.find(Before())
    assert not any(item.first for item in queue.items()), "its segment still says that it failed"
    queue.ack("0", items.offset_of(1))
    finder.find(Before())
    finder.find(Before())
    again = [item for item in queue.items() if item.first]
    assert [(item.location, item.first, item.size) for item in again] == [
        (f"{queue.directory}/bad", 3, 7)
    ]
    assert queue.store.children(paths.queue_failures("web")) == []


def done(queue: Queue) -> tuple[int, int, int]:
    """Waiting, done and failed items; the rows of lanes have the same totals."""
    reading = ReadCache(queue.store)
    (row,) = overview(reading, {})
    lanes = lanes_of(reading, ["web"])
    assert sum(lane.done for lane in lanes) == row.done
    assert all(lane.done >= 0 for lane in lanes)
    return row.waiting, row.done, row.failed


def test_retried_item_is_done_once(queue: Queue) -> None:
    """It gets another number in any lane; one that is given up is done with."""
    queue.write("bad", "good", "worse")
    finder = queue.finder(discovery_seconds=0.0)
    finder.find(Before())
    for lane, name in (("0", "bad"), ("2", "worse")):
        queue.fail(name, f"{lane}.0")
    for lane in ("0", "1", "2"):
        queue.ack(lane, items.offset_of(1))
    assert done(queue) == (0, 1, 2)
    assert decide(Operator(queue.store, *BY), "web", ["0.0"], "retry") == ["0.0"]
    assert decide(Operator(queue.store, *BY), "web", ["2.0"], "skip") == ["2.0"]
    finder.find(Before())
    finder.find(Before())
    assert done(queue) == (1, 2, 0)
    (again,) = queue.items()
    lanes = queues.head(queue.store, "web").value.next  # type: ignore[union-attr]
    (lane,) = (name for name, number in lanes.items() if number == 2)
    queue.ack(lane, again.end)
    queue.finder(epoch=2).find(Before())
    assert done(queue) == (0, 3, 0), "whoever takes the queue keeps what was counted"


def test_only_failed_items_are_retried_or_skipped(queue: Queue) -> None:
    queue.finder().find(Before())
    with pytest.raises(UserError, match=r'no failed item "0.7"; none of its items failed'):
        decide(Operator(queue.store, *BY), "web", ["0.7"], "retry")
    queue.fail("bad")
    with pytest.raises(UserError, match=r'no failed item "0.7"; did you mean "0.0"'):
        decide(Operator(queue.store, *BY), "web", ["0.7"], "skip")
    assert decide(Operator(queue.store, *BY), "web", ["0.0"], "skip") == ["0.0"]
    queue.finder(epoch=2).find(Before())
    assert queue.store.children(paths.queue_failures("web")) == []


def test_missing_directory_is_reported(queue: Queue) -> None:
    queue.directory.rmdir()
    found = queue.finder().find(Before())
    assert "no such directory: create it, or correct the path" in found.troubles[0]


def test_lanes_grow_with_the_option_and_are_never_fewer(queue: Queue) -> None:
    queue.finder(lanes=2).find(Before())
    assert len(queue.finder(epoch=2, lanes=5).find(Before()).offers) == 5
    assert len(queue.finder(epoch=3, lanes=1).find(Before()).offers) == 5


def test_full_lane_is_followed_by_a_new_one(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of more items would exceed 63 bits."""
    monkeypatch.setattr(items, "FULL_ITEMS", 2)
    now = 0.0
    finder = queue.finder(lanes=2, clock=lambda: now)
    for number in range(7):
        queue.write(f"{number}.log")
        now += 3600
        offers = finder.find(Before()).offers
    assert Counter(item.number for item in queue.items()) == {0: 4, 1: 3}
    assert len(offers) == 5
    assert len(queue.finder(epoch=2, lanes=2).find(Before()).offers) == 5


def test_failed_item_of_a_full_lane_is_retried_in_another(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "FULL_ITEMS", 1)
    queue.write("bad")
    finder = queue.finder(lanes=1, discovery_seconds=0.0)
    finder.find(Before())
    queue.fail("bad")
    queue.ack("0", items.offset_of(1))
    finder.find(Before())
    decide(Operator(queue.store, *BY), "web", [], "retry")
    finder.find(Before())
    (again,) = queue.items()
    assert (again.location, again.number) == (f"{queue.directory}/bad", 0)


def there(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize("after", ["keep", "delete", "move"])
def test_acked_objects_are_kept_moved_or_deleted_as_configured(
    queue: Queue, tmp_path_factory: pytest.TempPathFactory, after: str
) -> None:
    target = tmp_path_factory.mktemp("done")
    queue.write("a", "b", "failed", "new", "soon", "later")
    more: dict[str, Any] = {"move_to": str(target)} if after == "move" else {}
    finder = queue.finder(lanes=1, after=after, rewritten="ignore", discovery_seconds=0.0, **more)
    finder.find(Before())
    number = {Path(item.location).name: item.number for item in queue.items()}
    queue.fail("failed", name=f"0.{number['failed']}")
    queue.write("new", text="it was rewritten meanwhile\n")
    queue.write("soon", text="A LINE\n")  # as many bytes, within a second
    queue.ack("0", items.offset_of(5))
    finder.find(Before())
    assert len(there(queue.directory)) == 6, "nothing goes before its segment is acked"
    queue.ack("0", items.offset_of(6))
    finder.find(Before())
    changed = {"failed", "new", "soon"}
    left = {"a", "b", "later"} | changed if after == "keep" else changed
    assert there(queue.directory) == left
    gone = {"a", "b", "later"} if after == "move" else set()
    assert there(target) == gone


@pytest.mark.slow
def test_look_takes_a_bounded_time_for_any_number_of_done_items(queue: Queue) -> None:
    """A look that takes two minutes counts as hanging."""
    now, tick = 0.0, 0.0

    def clock() -> float:
        nonlocal now
        now += tick
        return now

    queue.write(*(f"{'n' * 150}{number}" for number in range(1_000)))
    finder = queue.finder(lanes=2, after="delete", discovery_seconds=0.0, clock=clock)
    finder.find(Before())
    for lane in "01":
        queue.ack(lane, items.offset_of(500))
    tick = SEARCH_SECONDS / 2
    assert finder.find(Before()).more
    assert 0 < len(there(queue.directory)) < 1_000
    tick = 0.0
    assert not finder.find(Before()).more
    assert there(queue.directory) == set()


def test_object_that_cannot_be_moved_is_reported_and_kept_in_the_queue(queue: Queue) -> None:
    queue.write("a")
    (queue.directory.parent / "file").write_text("no directory")
    finder = queue.finder(
        lanes=1, after="move", move_to=f"{queue.directory.parent}/file/x", discovery_seconds=0.0
    )
    finder.find(Before())
    queue.ack("0", items.offset_of(1))
    found = finder.find(Before())
    assert "a was read, but cannot be removed" in found.troubles[0]
    assert len(queue.items()) == 1


MANY = tuple(f"many{number}" for number in range(2_500))
"""So many that seen objects are written to a file, where the flow configures one."""


class Filed:
    """A queue with ``MANY`` objects whose seen objects are in files."""

    def __init__(self, folder: Path) -> None:
        (folder / "in").mkdir(parents=True)
        self.queue = Queue(folder / "in")
        self.queue.write(*MANY, text="")
        self.seen = folder / "seen"

    def find(self, store: FakeStore | None = None, epoch: int = 1, **more: Any) -> None:
        options = {"seen_in": str(self.seen), "most_waiting": 10_000, **more}
        finder = self.queue.finder(store, epoch, discovery_seconds=0.0, **options)
        finder.find(Before())

    def named(self) -> set[str]:
        """The files whose names are in ZooKeeper."""
        names = self.queue.store.children(paths.queue_seen("web"))
        found = self.queue.store.read_each([paths.queue_seen_bucket("web", one) for one in names])
        return {one.value.file for one in found} - {""}  # type: ignore[union-attr]

    def there(self) -> set[str]:
        return {path.name for path in self.seen.glob("*/*")}


@pytest.mark.slow
def test_large_set_of_seen_objects_is_in_files_named_by_zookeeper(tmp_path: Path) -> None:
    filed = Filed(tmp_path)
    filed.find()
    assert filed.named() == filed.there() != set()
    first = filed.there()
    filed.queue.write(*(f"more{number}" for number in range(1_100)))
    filed.find(epoch=2)
    assert filed.named() == filed.there()
    assert not filed.there() & first
    assert set(filed.queue.names().values()) == {1}
    assert len(filed.queue.names()) == 3_600


@pytest.mark.long
def test_named_files_of_seen_objects_exist_after_a_crash_at_any_step(tmp_path: Path) -> None:
    def second(folder: Path, steps: Steps) -> Filed:
        """A second look: 2,500 objects were seen, 1,100 are new and 1,000 are gone."""
        filed = Filed(folder)
        filed.find()
        filed.queue.write(*(f"more{number}" for number in range(1_100)), text="")
        for name in MANY[:1_000]:
            (filed.queue.directory / name).unlink()
        with suppress(CrashError):
            filed.find(SteppingStore(filed.queue.tree, steps), epoch=2)
        return filed

    steps = Steps()
    second(tmp_path / "whole", steps)
    assert steps.names.count("before commit") == 3, "the head, items, what is gone"
    for at in range(steps.names.index("before commit"), steps.count):
        filed = second(tmp_path / str(at), Steps(at, crash))
        assert filed.named() <= filed.there(), steps.names[at]
        filed.queue.write("last")
        filed.find(epoch=3)
        assert filed.named() == filed.there(), "what nobody names is removed"
        assert set(filed.queue.names().values()) == {1}, steps.names[at]
        assert len(filed.queue.names()) == 3_601


@pytest.mark.slow
def test_file_of_seen_objects_that_cannot_be_written_is_not_named(tmp_path: Path) -> None:
    filed = Filed(tmp_path)
    filed.seen.write_text("no directory")
    with pytest.raises(UnavailableError, match="seen"):
        filed.find()
    assert filed.queue.items() == []
    assert filed.named() == set()
    filed.seen.unlink()
    filed.find()
    assert filed.queue.names() == dict.fromkeys(MANY, 1)


@pytest.mark.slow
def test_missing_or_damaged_file_of_seen_objects_stops_the_listing(tmp_path: Path) -> None:
    filed = Filed(tmp_path)
    filed.find()
    (file,) = filed.seen.glob("*/*")
    data = file.read_bytes()
    file.write_bytes(data[:-9] + b"x" + data[-8:])
    with pytest.raises(CorruptError, match="damaged"):
        filed.find(epoch=2)
    file.unlink()
    with pytest.raises(CorruptError, match=f"{file} .* is missing: restore this file"):
        filed.find(epoch=2)
    with pytest.raises(UserError, match="set `seen_in` as before"):
        filed.find(epoch=2, seen_in=None)
    file.write_bytes(data)
    filed.find(epoch=2)
    assert filed.queue.names() == dict.fromkeys(MANY, 1)


@pytest.mark.slow
def test_seen_objects_move_into_files_when_a_flow_configures_a_place(tmp_path: Path) -> None:
    filed = Filed(tmp_path)
    filed.find(seen_in=None)
    assert filed.named() == set()
    filed.queue.write(*(f"more{number}" for number in range(1_100)), text="")
    filed.find(epoch=2)
    assert filed.named() == filed.there() != set()
    moved = filed.seen.rename(tmp_path / "moved")
    filed.find(epoch=3, seen_in=str(moved))
    assert len(filed.queue.names()) == 3_600


@pytest.mark.slow
def test_number_of_names_in_a_transaction_is_bounded(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    names = [f"{number:0240}" for number in range(2 * APPENDED_BYTES // 240)]
    queue.write(*names, text="")
    steps = Steps()
    queue.finder(SteppingStore(queue.tree, steps), most_waiting=10_000).find(Before())
    assert len(queue.names()) == len(names)
    assert steps.names.count("before commit") >= 5, "made, taken, and three with items"


SOON = "2100-01-01T00:00:00Z"


def test_flow_bounded_by_a_write_time_ends(queue: Queue) -> None:
    queue.write("a", "b", "c", "late")
    os.utime(queue.directory / "a", (1000, 1000))
    os.utime(queue.directory / "b", (2000, 2000))
    os.utime(queue.directory / "late", (3000, 3000))
    bounds: Any = {"written_from": "1970-01-01T00:30:00Z", "written_before": "1970-01-01T00:50:00Z"}
    found = queue.finder(**bounds).find(Before())
    assert queue.names() == {"b": 1}
    assert found.bounded
    ends = {offer.end for offer in found.offers.values()}
    assert ends == {0, items.offset_of(1)}
    queue.write("d")
    os.utime(queue.directory / "d", (2500, 2500))
    again = queue.finder(epoch=2, **bounds).find(Before())
    assert (again.bounded, again.offers) == (True, found.offers)
    assert queue.names() == {"b": 1}


def test_bounded_flow_does_not_end_before_all_is_listed_and_settled(queue: Queue) -> None:
    queue.write("a", "b", "c")
    finder = queue.finder(written_before=SOON, discovery_seconds=0.0, settle_seconds=3600.0)
    assert not finder.find(Before()).bounded
    full = queue.finder(epoch=2, written_before=SOON, discovery_seconds=0.0, most_waiting=2)
    assert not full.find(Before()).bounded
    queue.directory.rename(queue.directory.with_name("away"))
    away = queue.finder(epoch=3, written_before=SOON).find(Before())
    assert away.troubles
    assert not away.bounded


def test_flow_without_a_write_bound_has_no_end(queue: Queue) -> None:
    queue.write("a")
    found = queue.finder().find(Before())
    assert not found.bounded
    assert {offer.end for offer in found.offers.values()} == {None}


def test_discovery_that_outlives_its_flow_creates_no_queue(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    delete_flow(Operator(queue.store, *BY), "web")
    with pytest.raises(ConflictError, match="flow web was deleted"):
        queue.finder().find(Before())
    assert queue.store.read(paths.queue("web")) is None
