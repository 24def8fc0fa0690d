"""Which lane of a queue gets an object."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flumeng.connectors.objects.formats import cuttable
from flumeng.connectors.objects.lanes import (
    WHOLE_EVENT_BYTES,
    LaneContents,
    LaneState,
    spread,
    weigh,
)
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.pages import Listed
from flumeng.connectors.objects.queue_log import QueueLog
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item
from tests.testkit.cluster import new_cluster
from tests.testkit.store import FakeTree

FLOW = """\
flow: web
sources: [objects: {paths: ["/in/*"]}]
sinks: [noop]
"""
SOURCE = ObjectsSource(paths=("/in/*",))
WEIGH = weigh(SOURCE)
OPENING = WEIGH("/in/empty", 0)


def objects(*sizes: int) -> list[Listed]:
    return [Listed(f"/in/{number:05}", size, 0) for number, size in enumerate(sizes)]


def test_lane_with_the_least_waiting_work_is_chosen() -> None:
    lanes = spread(objects(1_000_000, 1, 1, 1), {"0": 0, "1": 0, "2": 0}, WEIGH)
    assert lanes == ["0", "1", "2", "1"]


def test_waiting_work_of_a_lane_counts() -> None:
    assert spread(objects(1, 1), {"0": 5 * OPENING, "1": 0}, WEIGH) == ["1", "1"]


def test_objects_without_bytes_are_spread_too() -> None:
    assert spread(objects(0, 0, 0, 0), {"0": 0, "1": 0}, WEIGH) == ["0", "1", "0", "1"]


def test_weight_of_an_object_in_a_lane_is_its_weight_when_read() -> None:
    """Bytes that are compressed are more work: batches are cut and hosts get lanes by the same."""
    for location in ("/in/a.log", "/in/a.log.gz", "/in/a.tar", "s3a://b/a.gz?region=x"):
        contents = LaneContents([Item(0, location, 10_000, 0)], cuttable(SOURCE))
        assert WEIGH(location, 10_000) == contents.events(0, items.offset_of(1))
    assert WEIGH("/in/a.log.gz", 10_000) - OPENING == 10_000 // WHOLE_EVENT_BYTES
    found = [Listed("/in/a.gz", 10_000, 0), *objects(50_000, 50_000)]
    assert spread(found, {"0": 0, "1": 0}, WEIGH) == ["0", "1", "1"]


@given(
    st.lists(st.integers(0, 10**9), max_size=60),
    st.lists(st.integers(0, 10**9), min_size=1, max_size=8),
)
def test_object_goes_to_a_lane_with_the_least_total(sizes: list[int], before: list[int]) -> None:
    waiting = {str(lane): weight for lane, weight in enumerate(before)}
    listed = objects(*sizes)
    lanes = spread(listed, waiting, WEIGH)
    assert lanes == spread(listed, waiting, WEIGH)
    total = dict(waiting)
    for lane, one in zip(lanes, listed, strict=True):
        assert total[lane] == min(total.values())
        total[lane] += WEIGH(one.location, one.size)


@given(st.lists(st.tuples(st.sampled_from(["append", "ack", "remove"]), st.integers(0, 5))))
def test_counts_of_a_lane_are_those_of_its_items(steps: list[tuple[str, int]]) -> None:
    lane = LaneState(weigh=WEIGH)
    for step, amount in steps:
        if step == "append":
            numbers = range(lane.next, lane.next + amount + 1)
            lane.append([Item(n, f"/in/{n}.gz" if n % 2 else "/in/a", 999 * n, 0) for n in numbers])
        elif step == "ack":
            lane.acknowledge(lane.next - amount)
        elif done := lane.done():
            lane.remove(done[0])
        kept = [one for part in lane.segments for one in part]
        waiting = [one for one in kept if one.number >= lane.acked]
        assert lane.kept == len(kept)
        assert lane.weight == sum(WEIGH(one.location, one.size) for one in waiting)


def test_queue_append_does_not_weigh_kept_items_again() -> None:
    store = new_cluster(FakeTree())
    apply_flow(Operator(store, "test", "", 0.0), FLOW)
    weighed: list[str] = []

    def counting(location: str, size: int) -> int:
        weighed.append(location)
        return WEIGH(location, size)

    log = QueueLog.take(store, "web", 1, 2, "order any", weigh=counting)
    for number in range(100):
        lanes = spread(objects(1), log.waiting_weights, log.weigh)
        assert lanes == [str(number % 2)]
        log.append({lanes[0]: [Item(log.lanes[lanes[0]].next, f"/in/{number}", 1, 0)]}, {})
    assert log.kept_items == 100
    assert len(weighed) == 2 * 100, "each when its lane is chosen, and when it is in it"
