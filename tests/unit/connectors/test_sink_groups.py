"""Groups of sinks: the events of each member when others fail, and valid flows with groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flumeng.agent.collector.commit import Commits
from flumeng.agent.collector.daemon import require_allowed
from flumeng.config import FlowSpec, SpecError, check_flow, parse_flow
from flumeng.config.guarantees import promise
from flumeng.config.policy import Policy
from flumeng.config.spark import SparkOptions
from flumeng.connectors.api.dead_letters import (
    DeadLetters,
    Refuse,
    is_dead_letters,
    rows,
    schema_around,
)
from flumeng.connectors.api.sink import Attempt, Row, TaskRevision, Written
from flumeng.connectors.groups import sink as groups
from flumeng.connectors.groups.options import FirstOf
from flumeng.connectors.groups.sink import (
    Availability,
    FirstOfSink,
    GroupSink,
    OneOfSink,
    WriteToOne,
    of_group,
)
from flumeng.control.queries import flow_graph
from flumeng.control.queries.flow_graph import graph_of
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.platform import file_store
from flumeng.platform.errors import UnavailableError, UserError
from tests.testkit.clock import Clock
from tests.testkit.collector import TASK
from tests.testkit.store import FakeStore

HEAD = "flow: web\nsources: [tail: {paths: [/var/a]}]\n"
HTTP = 'http: {{url: "http://h{}/"}}'
COUNT = pa.schema([pa.field("events", pa.int64())])
EVENTS = pa.schema([pa.field("n", pa.int64())])


@dataclass(frozen=True)
class Counting:
    """A stage that fails with ``error`` after ``before`` batches."""

    error: Exception | None = None
    before: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        events = 0
        for number, batch in enumerate(batches):
            if self.error is not None and number == self.before:
                raise self.error
            events += batch.num_rows
        yield pa.RecordBatch.from_pylist([{"events": events}], COUNT)


FAILING = Counting(UnavailableError("no answer"), before=1)


def numbers(*counts: int) -> Iterator[pa.RecordBatch]:
    for count in counts:
        yield pa.RecordBatch.from_pylist([{"n": n} for n in range(count)], EVENTS)


def write(stage: WriteToOne, *counts: int) -> list[dict[str, Any]]:
    return [row for out in stage(numbers(*counts)) for row in out.to_pylist()]


def shown(found: list[dict[str, Any]]) -> list[tuple[int | None, list[Any], list[int]]]:
    return [(row["member"], groups._read(row["rows"] or b""), row["failed"]) for row in found]


@pytest.fixture(autouse=True)
def unknown() -> None:
    """The states of members are unknown."""
    of_group.cache_clear()


def test_split_is_whole_in_the_next_member_when_one_fails_in_the_middle() -> None:
    stages = (FAILING, Counting(OSError("no space left")), Counting(), Counting())
    (row,) = write(WriteToOne(stages, (0, 1, 2, 3), None), 3, 4, 5)
    assert shown([row]) == [(2, [{"events": 12}], [0, 1])]
    assert row["reasons"] == ["no answer", "no space left"]


def test_avoided_member_is_tried_when_no_other_takes_the_split() -> None:
    (row,) = write(WriteToOne((Counting(), FAILING, Counting()), (1, 2), None), 1, 1)
    assert (row["member"], row["failed"]) == (2, [1])
    (row,) = write(WriteToOne((Counting(), FAILING), (1,), None), 1, 1)
    assert (row["member"], row["failed"]) == (0, [1])


def test_error_of_events_or_flow_is_not_passed_to_the_next_member() -> None:
    for error in (UserError("not trusted"), ValueError("a defect")):
        with pytest.raises(type(error)):
            write(WriteToOne((Counting(error), Counting()), (0, 1), None), 1)


def test_no_member_is_tried_for_a_split_without_events() -> None:
    assert write(WriteToOne((FAILING,), (0,), None)) == []


def test_split_that_every_member_fails_to_write_is_reported_without_a_member() -> None:
    (row,) = write(WriteToOne((FAILING, FAILING), (0, 1), None), 1, 1)
    assert shown([row]) == [(None, [], [0, 1])]


def test_members_take_turns_and_avoided_ones_are_passed_over() -> None:
    stages = (Counting(), Counting(), Counting())
    taken = [write(WriteToOne(stages, (0, 1, 2), turn), 1)[0]["member"] for turn in range(4)]
    assert taken == [0, 1, 2, 0]
    taken = [write(WriteToOne(stages, (0, 2), turn), 1)[0]["member"] for turn in range(4)]
    assert taken == [0, 2, 0, 2]


def test_a_back_off_doubles_up_to_its_maximum_and_ends_with_a_success() -> None:
    clock = Clock()
    members = Availability(2, 10.0, 35.0, clock)
    for seconds in (10, 20, 35, 35):
        members.note([1], {0: "away"})
        members.note([1], {0: "away still"})  # of a batch that ran at the same time
        assert members.ready() == (1,)
        clock.now += seconds - 1
        assert members.ready() == (1,)
        clock.now += 1
        assert members.ready() == (0, 1)
    assert members.failing() == {0: "away still"}
    members.note([0], {})
    assert (members.ready(), members.failing()) == ((0, 1), {})
    members.note([0], {0: "away for some splits"})
    clock.now += 10
    assert members.ready() == (0, 1)


def group(*members: str, kind: str = "first_of", more: str = "") -> FlowSpec:
    return check_flow(f"{HEAD}sinks: [{kind}: {{sinks: [{', '.join(members)}]{more}}}]\n")


def sink_of(spec: FlowSpec, task: TaskRevision = TASK) -> GroupSink:
    options: Any = spec.sinks[0].options
    return (FirstOfSink if isinstance(options, FirstOf) else OneOfSink)(options, task)


def row(member: int | None, events: int, **failed: str) -> Row:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, COUNT) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([{"events": events}], COUNT))
    return {
        "member": member,
        "rows": stream.getvalue().to_pybytes(),
        "failed": [int(name[1:]) for name in failed],
        "reasons": list(failed.values()),
    }


def trial() -> LazyBatch:
    spark: Any = None
    return LazyBatch(spark, 2, None, (), EVENT_SCHEMA)


def staged(sink: GroupSink) -> WriteToOne:
    place = DeadLetters("sinks[0].first_of")
    (stage,) = sink.stage(trial(), Attempt(dead_letters=place)).pending
    assert isinstance(stage, WriteToOne)
    return stage


def test_driver_keeps_failed_members_across_claims_and_tasks() -> None:
    spec = group("noop", "noop", "noop")
    sink = sink_of(spec)
    assert staged(sink).ready == (0, 1, 2)
    assert sink.written([row(1, 3, m0="away"), row(2, 4, m0="away", m1="busy")]) == Written(7)
    for other in (sink, sink_of(spec), sink_of(spec, TaskRevision("web", "1", 2))):
        assert staged(other).ready == (2,)
        assert other.trouble == (
            "sinks[0].first_of: failed when last tried: [0] noop: away; [1] noop: busy"
        )
    elsewhere = sink_of(spec, replace(TASK, flow="other"))
    assert (staged(elsewhere).ready, elsewhere.trouble) == ((0, 1, 2), "")
    assert sink.written([row(0, 3), row(1, 1)]) == Written(4)
    assert (staged(sink).ready, sink.trouble) == ((0, 1, 2), "")


def test_turn_continues_with_the_next_batch() -> None:
    sink = sink_of(group("noop", "noop", "console", kind="one_of"))
    assert [staged(sink).turn for _ in range(3)] == [0, 2, 4]


def test_batch_that_no_member_takes_waits_and_names_all_members() -> None:
    sink = sink_of(group(*(HTTP.format(n) for n in range(20))))
    staged(sink)
    failed = {f"m{n}": f"no answer: {'x' * 500}" for n in range(20)}
    with pytest.raises(UnavailableError) as told:
        sink.written([row(0, 3), row(None, 0, **failed)])
    assert str(told.value).startswith(
        "sinks[0].first_of: no member accepts events: [0] http http://h0/"
    )
    assert all(f"[{n}] http http://h{n}/" in str(told.value) for n in range(20))
    assert len(str(told.value)) < 1000
    assert staged(sink).ready == ()


@dataclass(frozen=True)
class Refusing:
    """A member's stage that refuses the first event of each batch."""

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            refuse(batch.slice(0, 1), ["no such field"])
        yield pa.RecordBatch.from_pylist([{"events": 7}], COUNT)


def letters(stage: Any) -> DeadLetters:
    return groups._letters(DeadLetters("sinks[0].first_of", 1, stage), "[1].http")


def test_dead_letters_name_the_member_and_are_reported_beside_its_rows() -> None:
    places = []

    def buried(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            places.extend(batch["dead_place"].to_pylist())
        yield pa.RecordBatch.from_pylist([{"events": len(places)}], COUNT)

    stages = (FAILING, letters(buried).around(Refusing(), COUNT))
    found = write(WriteToOne(stages, (0, 1), None), 2, 2)
    assert [is_dead_letters(one) for one in found] == [True, False]
    assert shown(found[1:]) == [(1, [{"events": 7, "dead_letters": None}], [0])]
    assert list(rows(found)) == [{"events": 2}]
    assert places == ["sinks[0].first_of[1].http"] * 2
    assert schema_around(COUNT).names == ["events", "dead_letters"]


def test_failing_dead_letters_are_not_counted_as_a_failure_of_the_member() -> None:
    away = Counting(UnavailableError("dead letters cannot be written"))
    stages = (letters(away).around(Refusing(), COUNT), Counting())
    with pytest.raises(UnavailableError, match="dead letters cannot"):
        write(WriteToOne(stages, (0, 1), None), 2)


def test_files_of_a_failed_member_are_not_shown(tmp_path: Path) -> None:
    """The first one fails when it has staged a part of the split."""
    paths = [f"{tmp_path}/{name}" for name in "ab"]
    spec = group(*(f"files: {{path: {path}, format: text, compression: none}}" for path in paths))
    sink = sink_of(spec)
    staging = {root: f"{root}/_flumeng/x" for root in sink.roots}
    assert sorted(staging) == paths
    (stage,) = sink.stage(trial(), Attempt(staging)).pending
    assert isinstance(stage, WriteToOne)

    def breaking(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from stage.stages[0](batches)
        raise OSError("Stale file handle")

    broken = replace(stage, stages=(breaking, stage.stages[1]))
    events = pa.RecordBatch.from_pylist(
        [{"body": b"x", "ts": 0, "host": "h", "attrs": []}] * 5, EVENT_SCHEMA
    )
    found = [row for out in broken(iter([events])) for row in out.to_pylist()]
    written = sink.written(found)
    assert written.events == 5
    assert [target.rpartition("/")[0] for _, target in written.files] == [paths[1]]
    assert len(list(Path(staging[paths[0]]).iterdir())) == 1
    assert (written.staged, written.abandoned) == ((paths[1],), (paths[0],))


def test_unreachable_spare_root_is_left_to_a_later_owner(tmp_path: Path) -> None:
    lake, spare = tmp_path / "lake", tmp_path / "spare"
    commits = Commits(FakeStore(), "web", "collect.0", lambda uri: (Unmounted(), uri))
    lake.mkdir()
    left = commits.stage(str(lake), "web.n1.0.a", 1)
    unseen = commits.name(str(spare), "web.n1.0.a", 1)
    assert not spare.exists()
    roots = (str(lake), str(spare))
    assert commits.leftovers(roots, ["web.n1.0.a"], {str(spare)}) == [left]
    with pytest.raises(OSError, match="Stale"):
        commits.leftovers(roots, ["web.n1.0.a"])
    commits.discard([unseen, left])
    assert not Path(left).exists()


class Unmounted(file_store.LocalFileStore):
    """A store in which ``spare`` is unmounted."""

    def directories(self, path: str) -> list[str]:
        self._reach(path)
        return super().directories(path)

    def remove_tree(self, path: str) -> None:
        self._reach(path)
        super().remove_tree(path)

    def _reach(self, path: str) -> None:
        if "/spare/" in path:
            raise OSError("Stale file handle")


@pytest.mark.parametrize(
    ("sinks", "problem"),
    [
        ("first_of: [noop]", "expected two sinks or more: noop alone needs no group"),
        ("first_of: []", "expected at least one entry"),
        ("one_of: [noop, one_of: [noop, noop]]", "one_of is a group, which cannot be a member"),
        ("one_of: [noop, delta: {path: /d}]", "delta writes in the collector's driver"),
        ("one_of: [noop, spark: {format: parquet}]", "use console, elasticsearch, files"),
        ("one_of: [noop, nope]", r'sinks\[0\].one_of\[1\]: unknown sink "nope"'),
        ("one_of: {sinks: [noop, noop], backoff_seconds: 1 h}", "at most max_backoff_seconds"),
        (
            "first_of: [files: {path: /a}, files: {path: /a}]",
            r"/a is already used by .*first_of\[0\].files",
        ),
        ("first_of: [noop, files: {path: '/a/{b}'}]", r"\[1\].files: the path needs the column b"),
    ],
)
def test_invalid_group_is_reported(sinks: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        check_flow(f"{HEAD}filters: [where: seq > 0]\nsinks: [{sinks}]\n")


def test_exactly_once_is_accepted_for_groups_of_files_only() -> None:
    once = f"{HEAD}delivery: exactly-once\n"
    pair = "files: {path: /a, shared: true}, files: {path: /b, shared: true}"
    spec = parse_flow(f"{once}sinks: [first_of: [{pair}]]")
    assert "first_of: each event once, since its files show together with the acks." in promise(
        spec
    )
    search = 'elasticsearch: {hosts: ["http://e:9200"], index: a}'
    with pytest.raises(SpecError) as told:
        parse_flow(f"{once}sinks: [first_of: [files: {{path: /a}}, {search}]]")
    assert [problem.path for problem in told.value.problems] == ["sinks[0].first_of"]
    assert "events that the next one gets too" in str(told.value)


def test_a_policy_bounds_the_members(tmp_path: Path) -> None:
    policy = Policy(outputs=("http://h1:80/",))
    for kind in ("first_of", "one_of"):
        spec = group(HTTP.format(1), HTTP.format(2), kind=kind)
        with pytest.raises(UserError, match="does not allow to write to http://h2"):
            require_allowed(spec, policy, SparkOptions(), tmp_path)
    dead = parse_flow(f"{HEAD}sinks: [noop]\ndead_letters: {{first_of: [noop, {HTTP.format(2)}]}}")
    with pytest.raises(UserError, match="does not allow to write to http://h2"):
        require_allowed(dead, policy, SparkOptions(), tmp_path)
    inside = group("noop", f"files: {{path: {tmp_path}/lake}}")
    with pytest.raises(UserError, match="the node's data directory"):
        require_allowed(inside, Policy(), SparkOptions(), tmp_path)


def test_the_graph_shows_the_members() -> None:
    spec = group(HTTP.format(1), "files: {path: /a}")
    assert flow_graph.text(graph_of(spec)).splitlines()[3:] == [
        "  -> group first_of",
        "    -> sink http http://h1/",
        "    -> sink files /a",
    ]
    assert '  n2[["first_of"]]' in flow_graph.mermaid(graph_of(spec)).splitlines()
    assert '  n2 [shape=hexagon, label="first_of"];' in flow_graph.dot(graph_of(spec)).splitlines()


def test_group_of_files_has_the_batch_seconds_of_files() -> None:
    assert group("noop", "files: {path: /a}").batch_seconds == 60
    assert group("noop", "console").batch_seconds == 1
