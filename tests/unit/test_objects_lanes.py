"""Which lane of a queue gets an object."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flumeng.inputs.objects.lanes import OPENING_BYTES, spread, weight
from flumeng.inputs.objects.listed import Listed


def objects(*sizes: int) -> list[Listed]:
    return [Listed(f"/in/{number:05}", size, 0) for number, size in enumerate(sizes)]


def test_the_lane_with_the_least_to_be_read_is_the_next() -> None:
    big, small = 10 * OPENING_BYTES, 1
    lanes = spread(objects(big, small, small, small), {"0": 0, "1": 0, "2": 0})
    assert lanes == ["0", "1", "2", "1"]


def test_what_still_waits_counts() -> None:
    assert spread(objects(1, 1), {"0": 5 * OPENING_BYTES, "1": 0}) == ["1", "1"]


def test_objects_without_bytes_are_spread_too() -> None:
    assert spread(objects(0, 0, 0, 0), {"0": 0, "1": 0}) == ["0", "1", "0", "1"]


@given(
    st.lists(st.integers(0, 10**9), max_size=60),
    st.lists(st.integers(0, 10**9), min_size=1, max_size=8),
)
def test_no_object_goes_to_a_lane_that_has_more_than_another(
    sizes: list[int], before: list[int]
) -> None:
    waiting = {str(lane): weight for lane, weight in enumerate(before)}
    listed = objects(*sizes)
    lanes = spread(listed, waiting)
    assert lanes == spread(listed, waiting)
    total = dict(waiting)
    for lane, one in zip(lanes, listed, strict=True):
        assert total[lane] == min(total.values())
        total[lane] += weight(one.size)
