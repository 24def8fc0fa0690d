"""The contents of a lane, as batches are cut: nothing is lost or doubled, for any cuts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flumeng.agent.collector.ranges import Scale, backlog, next_ranges, split
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.objects.lanes import LaneContents
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item

LANE = "lane.0.5f2a90c1@objects"
SIZES = st.lists(
    st.one_of(st.integers(0, 3000), st.integers(0, 10**9), st.just(0)), min_size=1, max_size=12
)


def lane(sizes: list[int], first: int = 5, *, cuttable: bool = True) -> LaneContents:
    """Every other item is compressed, unless all are ``cuttable``."""
    found = [Item(first + place, f"/in/{place}", size, 0) for place, size in enumerate(sizes)]
    return LaneContents(found, lambda location: cuttable or int(location[4:]) % 2 == 0)


def bounds(sizes: list[int], first: int = 5) -> tuple[int, int]:
    return items.offset_of(first), items.offset_of(first + len(sizes))


@given(SIZES, st.integers(1, 10**7), st.booleans())
def test_pieces_follow_each_other_to_the_end(sizes: list[int], events: int, cuttable: bool) -> None:
    contents = lane(sizes, cuttable=cuttable)
    start, end = bounds(sizes)
    total, at, pieces = contents.events(start, end), start, 0
    while at < end and pieces < 50:
        after = contents.cut(at, end, events)
        assert at < after <= end
        number = items.number_of(after)
        inside = items.position_of(after)
        if inside:
            assert cuttable or number % 2, "a compressed item is not cut"
            assert inside < sizes[number - 5], "a cut lies in the item"
        more_than_one = after > items.offset_of(items.number_of(at) + 1)
        if after < end and more_than_one:
            assert contents.events(at, after) <= events + 1
        at, pieces = after, pieces + 1
    assert contents.cut(start, end, total + 1) == end


@given(SIZES, st.integers(1, 9), st.booleans())
def test_splits_cover_everything_once_and_in_order(
    sizes: list[int], parts: int, cuttable: bool
) -> None:
    scale = Scale({LANE: lane(sizes, cuttable=cuttable)})
    start, end = bounds(sizes)
    splits = split([Range(LANE, start, end)], parts, 1, scale)
    assert 1 <= len(splits) <= parts
    at = start
    for piece in (piece for one in splits for piece in one):
        assert piece.start == at < piece.end
        at = piece.end
    assert at == end


def test_large_object_is_split_for_all_and_small_ones_are_grouped() -> None:
    large, small = [10**9], [1000] * 400
    of_large = split([Range(LANE, *bounds(large))], 4, 1, Scale({LANE: lane(large)}))
    assert [len(one) for one in of_large] == [1, 1, 1, 1]
    sizes = [one[0].end - one[0].start for one in of_large[:3]]
    assert max(sizes) - min(sizes) < 10**9 // 100
    of_small = split([Range(LANE, *bounds(small))], 4, 1, Scale({LANE: lane(small)}))
    counts = [items.number_of(one[-1].end) - items.number_of(one[0].start) for one in of_small]
    assert max(counts) - min(counts) <= 2


def test_batch_has_about_its_configured_number_of_events() -> None:
    sizes = [20_000] * 1000  # of 150 events each, as far as anybody knows
    scale = Scale({LANE: lane(sizes)})
    start, end = bounds(sizes)
    assert backlog({LANE: start}, {LANE: end}, scale) == 150_000
    (piece,) = next_ranges({LANE: start}, {LANE: end}, 15_000, {}, scale)
    assert abs(scale.events(piece) - 15_000) <= 150


def test_reader_gets_the_items_that_its_range_touches() -> None:
    contents = lane([100, 200, 300])
    start, end = items.offset_of(6, 50), items.offset_of(7, 1)
    assert [one.size for one in items.decode(contents.address(start, end))] == [200, 300]
    assert [one.size for one in items.decode(contents.address(start, items.offset_of(7)))] == [200]
