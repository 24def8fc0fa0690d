"""Pollers: each due time is asked once, and goes on from the state that the one before has left."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flumeng.connectors.api.finding import Before, FindingTask
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.objects.watcher import LaneLog
from flumeng.connectors.polls import answers
from flumeng.connectors.polls.answers import AnswerContents, AnswerFiles, KeptAnswer, PollsReader
from flumeng.connectors.polls.finder import LANE, ScheduleFinder
from flumeng.connectors.polls.lane_poller import FAILED, KEPT, TRIES, LanePoller
from flumeng.connectors.polls.options import Answers, Schedule
from flumeng.connectors.polls.poll import MOST_STATE_BYTES, Answer
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.queues import decide
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import ABSENT
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.cluster import new_cluster
from tests.testkit.logs import tracebacks
from tests.testkit.owner_steps import CrashError, SteppingStore, Steps, crash
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths
from zkschema.records import Ack, Polls

FLOW = "flow: tickets\nsources: [generate: {}]\nsinks: [noop]\n"
BY = ("test", "", 0.0)
NOON = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Options:
    schedule: Schedule
    answers: Answers


@dataclass
class World:
    """A flow that polls, and its queue in a store."""

    directory: Path
    tree: FakeTree = field(default_factory=FakeTree)
    now: datetime = NOON
    epoch: int = 0

    def __post_init__(self) -> None:
        self.store = new_cluster(self.tree)
        apply_flow(Operator(self.store, *BY), FLOW)

    def finder(self, store: FakeStore | None = None, **options: Any) -> ScheduleFinder:
        """A new discovery task."""
        self.epoch += 1
        given = {"every_seconds": 10.0, "catch_up": "all", **options}
        poller = Options(Schedule(**given), Answers(path=str(self.directory)))
        task = FindingTask("tickets", self.epoch)
        return ScheduleFinder(poller, store or self.store, task, now=lambda: self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def queue(self) -> str:
        head = queues.head(self.store, "tickets")
        assert head is not None
        return head.value.id

    def lane(self) -> LaneLog:
        head = queues.head(self.store, "tickets")
        assert head is not None
        lane = queues.lanes(self.store, "tickets", head.value, [LANE])[LANE]
        found = queues.segments(self.store, "tickets", LANE, lane.segments)
        kept = [item for one in found for item in items.of_segment(one.value)]  # type: ignore[union-attr]
        return LaneLog(lane.next, tuple(kept))

    def due(self) -> list[str]:
        return [
            f"{datetime.fromtimestamp(one.modified_us / 1e6, UTC):%H:%M:%S}"
            for one in self.lane().items
        ]

    def polls(self) -> Polls:
        found = self.store.read(paths.polls("tickets"))
        return found.value if found else Polls(queue=self.queue(), path=str(self.directory))

    def ack(self, number: int) -> None:
        path = ack_path("tickets", self.partition())
        before = self.store.read(path)
        ack = Ack(epoch=1, offset=items.offset_of(number))
        self.store.write(path, ack, before.version if before else ABSENT)

    def partition(self) -> str:
        return queues.lane_partition(LANE, self.queue(), "polls")

    def files(self) -> AnswerFiles:
        return AnswerFiles(str(self.directory), "tickets", self.queue())

    def bodies(self) -> list[str]:
        """All kept bodies, as executors read them."""
        reader = PollsReader("tickets", "test", str(self.directory))
        kept = answers.kept(self.polls())
        if not kept:
            return []
        contents = AnswerContents(kept)
        start, end = kept[0].start, kept[-1].end
        name = self.partition()
        batches = reader.read(Range(name, start, end), contents.address(start, end))
        return [body.decode() for batch in batches for body in batch["body"].to_pylist()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "answers")


class Counting:
    """Answers with the next numbers, ``each`` of them in each of ``parts``."""

    def __init__(self, each: int = 2, parts: int = 1) -> None:
        self.each, self.parts = each, parts
        self.asked: list[datetime] = []
        self.error: Exception | None = None
        self.closed = False

    def ask(self, state: str, due: datetime) -> Answer:
        self.asked.append(due)
        if self.error is not None:
            raise self.error
        last, _, part = (state or "0.0").partition(".")
        numbers = [f"{int(last) + one + 1}".encode() for one in range(self.each)]
        more = int(part) + 1 < self.parts
        after = f"{int(last) + self.each}.{int(part) + 1 if more else 0}"
        return Answer(pa.array(numbers, pa.binary()), after, more)

    def close(self) -> None:
        self.closed = True


def asking(world: World, poll: Counting, store: FakeStore | None = None, **more: Any) -> LanePoller:
    pool = ThreadPoolExecutor(1, "poll")
    given = {"pool": pool, "failing_pool": pool, "wake": lambda: None, **more}
    return LanePoller(
        store or world.store, "tickets", world.partition(), poll, world.files(), **given
    )


def ask_all(
    world: World, poll: Counting, store: FakeStore | None = None, part_seconds: float = 10.0
) -> None:
    """Poll as one owner until no request is due."""
    one = asking(world, poll, store, part_seconds=part_seconds)
    one._ask_next(world.lane())
    while world.polls().next < world.lane().next:
        one._ask_next(world.lane())


# Due times


def test_each_due_time_becomes_an_item_once(world: World) -> None:
    finder = world.finder()
    finder.find(Before())
    assert world.due() == ["12:00:00"], "a schedule of seconds begins at once"
    for seconds in (3, 7, 25, 0):
        world.pass_time(seconds)
        finder.find(Before())
    assert world.due() == ["12:00:00", "12:00:10", "12:00:20", "12:00:30"]


def test_next_look_is_at_the_next_due_time(world: World) -> None:
    found = world.finder().find(Before())
    assert found.due_seconds == pytest.approx(10)
    world.pass_time(6)
    assert world.finder().find(Before()).due_seconds == pytest.approx(4)


def test_cron_expression_begins_at_its_first_due_time(world: World) -> None:
    finder = world.finder(every_seconds=None, cron="1 * * * *")
    finder.find(Before())
    assert world.due() == []
    world.pass_time(90)
    world.finder(every_seconds=None, cron="1 * * * *").find(Before())
    assert world.due() == ["12:01:00"], "whoever goes on knows since when"


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("all", [f"12:00:{second}0" for second in range(6)] + ["12:01:00"]),
        ("last", ["12:00:00", "12:01:00"]),
        ("none", ["12:00:00", "12:01:00"]),
    ],
)
def test_past_due_times_are_caught_up_as_configured(
    world: World, catch_up: str, expected: list[str]
) -> None:
    world.finder(catch_up=catch_up).find(Before())
    ask_all(world, Counting())
    world.pass_time(60)
    world.finder(catch_up=catch_up).find(Before())
    assert world.due() == expected


def test_catch_up_none_leaves_out_due_times_over_a_minute_old(world: World) -> None:
    rule: dict[str, Any] = {"every_seconds": 600.0, "catch_up": "none"}
    world.finder(**rule).find(Before())
    ask_all(world, Counting())
    world.pass_time(661)
    finder = world.finder(**rule)
    finder.find(Before())
    assert world.due() == ["12:00:00"]
    world.pass_time(540)
    finder.find(Before())
    assert world.due() == ["12:00:00", "12:20:00"]


@pytest.mark.parametrize("catch_up", ["last", "none"])
def test_one_due_time_is_open_at_a_time_unless_all_are_wanted(world: World, catch_up: str) -> None:
    finder = world.finder(catch_up=catch_up)
    finder.find(Before())
    for seconds in (0.5, 1.0, 2.0):
        world.pass_time(10)
        assert finder.find(Before()).due_seconds == pytest.approx(seconds)
    assert world.due() == ["12:00:00"]
    ask_all(world, Counting())
    finder.find(Before())
    assert world.due() == ["12:00:00", "12:00:30"]


def test_due_times_of_a_year_are_computed_quickly(world: World) -> None:
    finder = world.finder(every_seconds=1.0, catch_up="last")
    finder.find(Before())
    ask_all(world, Counting())
    world.pass_time(365 * 86_400)
    finder.find(Before())
    assert len(world.due()) == 2


def test_due_times_are_neither_lost_nor_doubled_by_any_crash(tmp_path: Path) -> None:
    """The discovery task dies at each of its steps in turn, and another one goes on."""
    step = 0
    while True:
        world = World(tmp_path / str(step))
        world.finder().find(Before())
        world.ack(1)
        world.pass_time(25)
        steps = Steps(step, crash)
        try:
            world.finder(SteppingStore(world.tree, steps)).find(Before())
        except CrashError:
            world.finder().find(Before())
        assert world.due()[-2:] == ["12:00:10", "12:00:20"], steps.names
        assert len(set(world.due())) == len(world.due())
        if steps.count <= step:
            return
        step += 1


def test_an_owner_that_wakes_up_late_appends_nothing(world: World) -> None:
    old = world.finder()
    old.find(Before())
    world.finder().find(Before())
    world.pass_time(10)
    with pytest.raises(ConflictError):
        old.find(Before())


# Requests


def test_each_due_time_continues_from_the_state_before(world: World) -> None:
    finder, poll = world.finder(), Counting()
    for _ in range(3):
        finder.find(Before())
        ask_all(world, poll)
        world.pass_time(10)
    assert world.bodies() == ["1", "2", "3", "4", "5", "6"]
    assert [f"{due:%S}" for due in poll.asked] == ["00", "10", "20"]


def test_answer_in_several_parts_is_one_answer(world: World) -> None:
    world.finder().find(Before())
    ask_all(world, Counting(each=2, parts=3))
    assert world.bodies() == ["1", "2", "3", "4", "5", "6"]
    assert world.polls().rows == (6,)


def test_long_answer_is_kept_in_parts(world: World) -> None:
    """An interrupted one continues under the same due time."""
    world.finder().find(Before())
    poll = Counting(each=2, parts=3)
    asking(world, poll, part_seconds=0.0)._ask_next(world.lane())
    assert (world.polls().next, world.polls().part, world.bodies()) == (0, 2, ["1", "2"])
    poll.error = UnavailableError("gone")
    with pytest.raises(UnavailableError):
        asking(world, poll, part_seconds=0.0)._ask_next(world.lane())
    poll.error = None
    ask_all(world, poll, part_seconds=0.0)
    assert world.bodies() == ["1", "2", "3", "4", "5", "6"]
    assert world.polls().positions == (0, 2, 4)
    assert len(set(poll.asked)) == 1


@pytest.mark.parametrize("part_seconds", [0.0, 10.0])
def test_no_answer_is_lost_or_doubled_by_any_crash(tmp_path: Path, part_seconds: float) -> None:
    """The poller dies at each step in turn; the next one repeats the unkept requests."""
    step = 0
    while True:
        world = World(tmp_path / str(step))
        world.finder().find(Before())
        world.pass_time(10)
        world.finder().find(Before())
        steps = Steps(step, crash)
        try:
            ask_all(world, Counting(parts=2), SteppingStore(world.tree, steps), part_seconds)
        except CrashError:
            ask_all(world, Counting(parts=2), part_seconds=part_seconds)
        assert world.bodies() == [f"{n}" for n in range(1, 9)], steps.names
        if steps.count <= step:
            return
        step += 1


def test_one_of_two_concurrent_pollers_wins(world: World) -> None:
    world.finder().find(Before())
    one, other = asking(world, Counting()), asking(world, Counting(each=3))
    for each in (one, other):
        each._read()
    one._ask_next(world.lane())
    with pytest.raises(ConflictError):
        other._ask_next(world.lane())
    assert world.bodies() == ["1", "2"]


def test_unexpected_error_of_a_poll_is_logged_once_and_so_is_its_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.finder().find(Before())
    poll = Counting()
    one = asking(world, poll)
    poll.error = KeyError("page")
    for _ in range(3):
        one._turn(world.lane())
    assert one._trouble == "'page'"
    assert tracebacks(caplog) == 1
    caplog.set_level(logging.INFO)
    poll.error = None
    for _ in range(2):
        one._turn(world.lane())
    assert caplog.text.count("flow tickets: its poller works again") == 1


def test_permanent_error_fails_the_item_and_the_next_one_is_polled(world: World) -> None:
    finder, poll = world.finder(), Counting()
    finder.find(Before())
    one = asking(world, poll)
    poll.error = UserError("404: no such page")
    for _ in range(TRIES):
        one._turn(world.lane())
    poll.error = None
    world.pass_time(10)
    finder.find(Before())
    one._ask_next(world.lane())
    assert world.bodies() == ["1", "2"]
    failure = world.store.read(paths.queue_failure("tickets", "0.0"))
    assert failure is not None and failure.value.why == "404: no such page"
    world.ack(2)
    decide(Operator(world.store, *BY), "tickets", ["0.0"], "retry")
    finder.find(Before())
    finder.find(Before())
    assert world.due()[-1] == "12:00:00", "it is due once more"
    ask_all(world, poll)
    assert world.bodies() == ["3", "4"]


@pytest.mark.slow
def test_unavailable_server_is_polled_until_it_answers(world: World) -> None:
    world.finder().find(Before())
    poll = Counting()
    poll.error = UnavailableError("connection refused")
    woken = threading.Event()
    one = asking(world, poll, wake=woken.set)
    one.follow(world.lane())
    assert woken.wait(10) and one.answered is not None
    assert (one.answered.trouble, one.answered.safe) == ("connection refused", 0)
    poll.error = None
    woken.clear()
    assert woken.wait(10), "it says when it is worth trying again"
    woken.clear()
    one.follow(world.lane())
    assert woken.wait(10)
    assert (one.answered.trouble, one.answered.safe) == ("", items.offset_of(1))


def test_kept_answers_are_limited_to_the_size_of_a_znode(world: World) -> None:
    finder = world.finder()
    finder.find(Before())
    world.pass_time(10 * 2 * KEPT)
    finder.find(Before())
    one = asking(world, Counting())
    for _ in range(2 * KEPT):
        one._ask_next(world.lane())
    assert len(world.polls().due) == KEPT
    world.ack(KEPT // 2)
    for _ in range(2 * KEPT):
        one._ask_next(world.lane())
    assert (world.polls().numbers[0], len(world.polls().due)) == (KEPT // 2, KEPT)


def test_state_that_grows_without_end_is_reported(world: World) -> None:
    class Growing(Counting):
        def ask(self, state: str, due: datetime) -> Answer:
            del state, due
            return Answer(pa.array([b"x"], pa.binary()), "x" * (MOST_STATE_BYTES + 1))

    world.finder().find(Before())
    one = asking(world, Growing())
    asking(world, Counting())._turn(LaneLog(0))
    one._turn(world.lane())
    assert one.answered is not None and "remember less" in one.answered.trouble


def test_nothing_is_polled_repeatedly_when_nothing_is_due(world: World) -> None:
    """As after `flow reset --to latest`, which passes over unpolled due times."""
    world.finder().find(Before())
    woken = []
    one = asking(world, Counting(), wake=lambda: woken.append(1))
    world.ack(1)
    lane = world.lane()
    one._turn(lane)
    for _ in range(10):
        one.follow(lane)
    assert len(woken) == 1
    world.pass_time(10)
    world.finder().find(Before())
    one._turn(world.lane())
    assert world.bodies() == ["1", "2"]


def test_received_parts_are_kept_when_the_next_part_fails(world: World) -> None:
    class Breaking(Counting):
        def ask(self, state: str, due: datetime) -> Answer:
            if len(self.asked) == 1:
                self.error = UnavailableError("reset by peer")
            return super().ask(state, due)

    world.finder().find(Before())
    poll = Breaking(each=2, parts=3)
    one = asking(world, poll)
    one._turn(world.lane())
    assert (world.bodies(), world.polls().part) == (["1", "2"], 2)
    for _ in range(3):
        one._turn(world.lane())
    assert one.answered is not None and one.answered.trouble == "reset by peer"
    assert len(list(world.directory.rglob("*.parquet"))) == 1, "no file is left behind"


@pytest.mark.slow
def test_number_of_stored_failures_is_bounded(world: World) -> None:
    finder, poll = world.finder(), Counting()
    finder.find(Before())
    world.pass_time(10 * 2 * FAILED)
    finder.find(Before())
    poll.error = UserError("404: no such page")
    one = asking(world, poll)
    for _ in range(TRIES * 2 * FAILED):
        one._turn(world.lane())
    assert len(world.store.children(paths.queue_failures("tickets"))) == FAILED
    assert one.answered is not None and "queue skip tickets" in one.answered.trouble


def test_state_of_a_former_queue_is_ignored(world: World) -> None:
    """A flow was deleted and applied again while a poller still ran."""
    world.finder().find(Before())
    left = Polls(queue="another", path="/", next=7, state="9")
    world.store.write(paths.polls("tickets"), left, ABSENT)
    ask_all(world, Counting())
    assert world.bodies() == ["1", "2"]


def test_answers_in_another_directory_are_not_given_up(world: World, tmp_path: Path) -> None:
    finder = world.finder()
    finder.find(Before())
    ask_all(world, Counting())
    world.pass_time(10)
    finder.find(Before())
    there = world.directory
    world.directory = tmp_path / "other"
    one = asking(world, Counting())
    one._turn(world.lane())
    assert one.answered is not None and one.answered.elsewhere == str(there)
    assert one.answered.safe == items.offset_of(1)
    world.ack(1)
    one._turn(world.lane())
    assert (one.answered.elsewhere, world.bodies()) == ("", ["3", "4"])


def test_flow_with_the_most_polls_is_refused_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets of more would exceed 63 bits."""
    monkeypatch.setattr(items, "FULL_ITEMS", 1)
    finder = world.finder()
    finder.find(Before())
    world.pass_time(3600)
    with pytest.raises(UserError, match=r"the most .*: delete it, and apply it under another name"):
        for _ in range(3):
            finder.find(Before())


def test_saved_position_in_the_future_is_reported_and_waited_for_or_passed_over(
    world: World,
) -> None:
    for catch_up, waits in (("all", True), ("last", False), ("none", False)):
        world.pass_time(86_400)
        world.finder(catch_up=catch_up).find(Before())
        ask_all(world, Counting())
        world.pass_time(-86_400)
        found = world.finder(catch_up=catch_up).find(Before())
        assert (bool(found.troubles), bool(found.notes)) == (waits, not waits)
        (text,) = found.troubles + found.notes
        assert f"{NOON + timedelta(days=1):%Y-%m-%dT%H}" in text
        assert ("no poll is due before" in text) == waits
        world.pass_time(20)
        before = len(world.due())
        world.finder(catch_up=catch_up).find(Before())
        assert (len(world.due()) > before) != waits
        ask_all(world, Counting())


# Reading


def test_answers_are_removed_when_they_are_acked_and_not_before(world: World) -> None:
    finder, poll = world.finder(), Counting()
    for _ in range(3):
        finder.find(Before())
        ask_all(world, poll)
        world.pass_time(10)
    with world.files().new(1) as orphan:
        orphan.append(pa.array([b"never named"], pa.binary()))
    world.ack(2)
    finder.find(Before())
    left = [path.name for path in world.directory.rglob("*.parquet")]
    assert [name[:10] for name in left] == ["0000000002"]
    assert world.polls().next == 3


def test_each_row_is_read_once_for_any_ranges(world: World) -> None:
    finder = world.finder()
    sizes = [3, 0, 70_000, 1, 0]
    for size in sizes:
        finder.find(Before())
        ask_all(world, Counting(each=size))
        world.pass_time(10)
    kept = answers.kept(world.polls())
    contents = AnswerContents(kept)
    end = items.offset_of(len(sizes))
    assert contents.events(0, end) == sum(sizes)
    reader = PollsReader("tickets", "test", str(world.directory))
    name = world.partition()
    seen: Counter[int] = Counter()
    at = 0
    while at < end:
        to = contents.cut(at, end, 20_011)
        assert at < to <= end
        for batch in reader.read(Range(name, at, to), contents.address(at, to)):
            assert all(at <= seq < to for seq in batch["seq"].to_pylist())
            seen.update(batch["seq"].to_pylist())
        at = to
    assert (len(seen), set(seen.values())) == (sum(sizes), {1})


def test_damaged_answer_is_reported_and_never_read_as_another(world: World) -> None:
    world.finder().find(Before())
    ask_all(world, Counting(each=20_000))
    (path,) = world.directory.rglob("*.parquet")
    whole = path.read_bytes()
    good = world.bodies()
    for place in range(64, len(whole) - 64, len(whole) // 40):
        spoiled = bytearray(whole)
        spoiled[place] ^= 0x10
        path.write_bytes(spoiled)
        try:
            assert world.bodies() == good, place
        except UnreadableError as error:
            assert error.damaged
    path.unlink()
    with pytest.raises(UnreadableError, match="no longer exists"):
        world.bodies()


def test_event_has_its_due_time(world: World) -> None:
    world.finder().find(Before())
    ask_all(world, Counting())
    (kept,) = answers.kept(world.polls())
    reader = PollsReader("tickets", "http_poll", str(world.directory))
    name = world.partition()
    (batch,) = reader.read(Range(name, 0, kept.end), answers.encode([kept]))
    assert batch["ts"][0].as_py() == NOON
    assert dict(batch["attrs"][0].as_py()) == {
        "source": "http_poll",
        "due": "2026-11-26T12:00:00+00:00",
    }


def test_record_of_polls_is_encoded_and_decoded() -> None:
    kept = [KeptAnswer(5, 1, 0, 2, "f"), KeptAnswer(5, 1, 2, 9, "g"), KeptAnswer(7, 3, 0, 1, "h")]
    assert answers.kept(Polls(queue="q", path="/", **answers.columns_of(kept))) == kept
    assert answers.decode(answers.encode(kept)) == kept
