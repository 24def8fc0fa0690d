"""The events of a batch: nothing lost, nothing doubled, no partition starved."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.agent.collector.ranges import BatchSize, Handoff, backlog, next_ranges, split
from flumeng.connectors.api.ranged import Range

offsets = st.integers(0, 10_000)
journals = st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(offsets, offsets, offsets))


@given(journals, st.integers(1, 30_000))
def test_ranges_begin_at_the_starts_and_never_pass_the_safe_offset(
    given_journals: dict[str, tuple[int, int, int]], limit: int
) -> None:
    starts = {name: start for name, (start, _, _) in given_journals.items()}
    safe = {name: start + more for name, (start, more, _) in given_journals.items()}
    marks = {name: mark for name, (_, _, mark) in given_journals.items()}

    ranges = next_ranges(starts, safe, limit, marks)

    assert sum(r.events for r in ranges) <= limit
    for piece in ranges:
        assert piece.start == starts[piece.partition] < piece.end <= safe[piece.partition]
        assert piece.replayed == (piece.start < marks[piece.partition])
        assert not piece.replayed or piece.end <= marks[piece.partition]
    assert bool(ranges) == any(safe[name] > starts[name] for name in starts)


@given(journals, st.integers(1, 30_000))
def test_batch_is_full_while_events_wait(
    given_journals: dict[str, tuple[int, int, int]], limit: int
) -> None:
    starts = {name: start for name, (start, _, _) in given_journals.items()}
    safe = {name: start + more for name, (start, more, _) in given_journals.items()}

    ranges = next_ranges(starts, safe, limit, {})

    assert sum(r.events for r in ranges) == min(limit, backlog(starts, safe))


def test_every_partition_gets_a_share_and_small_ones_leave_theirs_to_others() -> None:
    starts = dict.fromkeys("abc", 0)

    ranges = next_ranges(starts, {"a": 1_000_000, "b": 10, "c": 1_000_000}, 1_010, {})

    assert ranges == (Range("a", 0, 500), Range("b", 0, 10), Range("c", 0, 500))


def test_a_partition_that_cannot_be_reached_is_left_out() -> None:
    assert next_ranges({"a": 5, "b": 0}, {"b": 3}, 100, {}) == (Range("b", 0, 3),)


def test_partitions_beyond_a_transaction_are_chosen_by_the_longest_backlog() -> None:
    starts = {f"j{number:04}": 0 for number in range(1_500)}
    safe = {name: 1 + (number >= 1_000) for number, name in enumerate(starts)}

    ranges = next_ranges(starts, safe, 1_000_000, {})

    assert len(ranges) == 1_000
    assert {r.partition for r in ranges} >= {name for name in starts if safe[name] == 2}


pieces = st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 5_000)), max_size=8)


@given(pieces, st.integers(1, 16), st.integers(1, 2_000))
def test_splits_hold_the_same_events_in_the_same_order(
    given_pieces: list[tuple[int, int]], parts: int, least: int
) -> None:
    ranges = [
        Range(f"j{number}", start, start + more)
        for number, (start, more) in enumerate(given_pieces)
        if more
    ]

    splits = split(ranges, parts, least)

    joined: list[Range] = []
    for piece in (piece for part in splits for piece in part):
        if joined and (joined[-1].partition, joined[-1].end) == (piece.partition, piece.start):
            joined[-1] = Range(piece.partition, joined[-1].start, piece.end)
        else:
            joined.append(piece)
    assert joined == ranges
    assert len(splits) <= parts
    sizes = [sum(piece.events for piece in part) for part in splits]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(sizes) <= 1 or min(sizes) >= least


def test_a_split_keeps_the_replayed_flag() -> None:
    (first, second) = split([Range("a", 0, 10, replayed=True)], 2, 1)
    assert (*first, *second) == (Range("a", 0, 5, True), Range("a", 5, 10, True))


def test_batch_size_converges_to_the_measured_rate() -> None:
    size = BatchSize(cap=100_000_000)
    for _ in range(20):
        size.measured(size.events, 0.2 + size.events / 1_000_000)
    assert size.events == pytest.approx(1_300_000, rel=0.05)


def test_batch_size_doubles_at_most_and_never_exceeds_the_cap() -> None:
    size = BatchSize(cap=500_000)
    size.measured(size.events, 0.001)
    assert size.events == 400_000
    size.measured(size.events, 0.001)
    assert size.events == 500_000


def test_batch_stays_within_its_bytes_by_the_largest_recent_event_size() -> None:
    size = BatchSize(cap=1_000_000, most_bytes=10_000_000)
    assert size.events == 10_000_000 // 1024, "nothing is known of the first one"
    size.weighed(100_000.0)
    assert size.events == 100
    for _ in range(20):
        size.measured(size.events, 0.001)
        size.weighed(2_000.0)
    assert 500 < size.events < 5_000, "lighter ones are believed bit by bit"
    for _ in range(60):
        size.measured(size.events, 0.001)
        size.weighed(2_000.0)
    assert size.events == 5_000
    size.weighed(40_000_000.0)
    assert size.events == 1, "one event is a batch, however large"


def test_first_measured_event_size_counts_as_it_is() -> None:
    size = BatchSize(cap=1_000_000, most_bytes=1_024_000)
    size.weighed(100.0)
    for _ in range(5):
        size.measured(size.events, 0.001)
    assert size.events == 10_240


def test_bytes_are_ignored_without_a_byte_limit() -> None:
    size = BatchSize(cap=1_000_000)
    size.weighed(100_000.0)
    assert size.events == BatchSize.FIRST


def test_batch_that_was_not_full_changes_no_size_unless_it_was_slow() -> None:
    size = BatchSize(cap=10_000_000)
    size.measured(10, 0.3)
    assert size.events == BatchSize.FIRST
    size.measured(BatchSize.SMALL, 30.0)
    assert size.events == BatchSize.FIRST, "a small one may have waited for others"
    size.measured(BatchSize.FIRST // 2, 30.0)
    assert size.events == BatchSize.FIRST // 2


def test_failures_shrink_the_batch_size_and_success_restores_it() -> None:
    size = BatchSize(cap=1_000_000)
    for _ in range(50):
        size.failed()
    assert size.events == BatchSize.LEAST
    for _ in range(15):
        size.measured(size.events, 0.001)
    assert size.events == 1_000_000


def test_too_wide_batch_sets_a_ceiling_that_rises_slowly() -> None:
    size = BatchSize(cap=1_000_000)
    size.too_wide()
    assert size.events == 100_000
    size.measured(size.events, 0.001)
    assert size.events == 105_000
    for _ in range(50):
        size.too_wide()
    assert size.events == BatchSize.LEAST
    for _ in range(400):
        size.measured(size.events, 0.001)
    assert size.events == 1_000_000


@pytest.mark.parametrize(("fixed_seconds", "rate"), [(3.0, 1e6), (0.1, 300.0), (0.0, 5000.0)])
def test_slow_lake_does_not_shrink_batches_without_end(fixed_seconds: float, rate: float) -> None:
    """Nor does one that costs seconds a batch keep those small that failures have made so."""
    sizes = [BatchSize(cap=1_000_000), BatchSize(cap=1_000_000)]
    for _ in range(50):
        sizes[1].failed()
    for size in sizes * 30:
        size.measured(size.events, fixed_seconds + size.events / rate)
    assert sizes[0].events == pytest.approx(sizes[1].events, rel=0.05)
    assert sizes[0].events == pytest.approx(min(10.0 * rate, BatchSize.SMALL), rel=0.05)


def test_handoff_hurries_no_batch_for_a_partition_that_is_unreachable() -> None:
    handoff = Handoff()
    handoff.begin(["a", "b"])
    assert handoff.is_due({"a": 5, "b": 5}, {"a": 0, "b": 0})
    assert not handoff.is_due({"b": 6}, {"a": 0, "b": 5})
    assert not handoff.done
    assert handoff.is_due({"a": 7, "b": 6}, {"a": 0, "b": 5})
    assert not handoff.is_due({"a": 7, "b": 6}, {"a": 5, "b": 5})
    assert handoff.done
