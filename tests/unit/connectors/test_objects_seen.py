"""Objects that a listing has seen before, and objects unchanged for long enough."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.connectors.objects import seen_hashes
from flumeng.connectors.objects.options import Order
from flumeng.connectors.objects.pages import Listed
from flumeng.connectors.objects.seen_objects import Seen, Settling, seen
from flumeng.platform.errors import CorruptError

PATH = "/in/*"
SECOND = 1_000_000
NOW = 1_000_000 * SECOND


class Stored:
    """A set of seen objects, and its written buckets."""

    def __init__(self, order: Order, *, rewritten: bool = True, window_seconds: float = 10) -> None:
        self._order = order
        self._rewritten = rewritten
        self._window_seconds = window_seconds
        self.buckets: dict[str, bytes] = {}
        self.written = 0
        self.seen = self._made()

    def write(self) -> None:
        changed = self.seen.changed()
        self.written = len(changed)
        self.buckets.update(changed)
        self.buckets = {name: data for name, data in self.buckets.items() if data}
        assert all(len(data) <= seen_hashes.SMALL_BYTES for data in changed.values())

    def restart(self) -> None:
        self.seen = self._made()

    def take(self, *listed: Listed) -> list[Listed]:
        new = self.seen.new(PATH, listed)
        self.seen.add(PATH, new)
        self.write()
        return new

    def _made(self) -> Seen:
        return seen(
            self._order,
            rewritten=self._rewritten,
            window_seconds=self._window_seconds,
            buckets=self.buckets,
        )


def at(name: str, seconds: float = 0, size: int = 1) -> Listed:
    return Listed(f"/in/{name}", size, NOW + int(seconds * SECOND))


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data(), st.booleans())
def test_seen_set_is_the_added_objects_that_still_exist(
    data: st.DataObject, rewritten: bool
) -> None:
    stored = Stored("any", rewritten=rewritten)
    expected: set[tuple[object, ...]] = set()
    there: dict[int, int] = {}

    def key(one: Listed) -> tuple[object, ...]:
        return tuple(one) if rewritten else (one.location,)

    for _ in range(data.draw(st.integers(1, 6))):
        first = data.draw(st.integers(0, 3000))
        count = data.draw(st.integers(0, 1500))
        if data.draw(st.booleans()):
            there |= dict.fromkeys(range(first, first + count), data.draw(st.integers(1, 2)))
        else:
            there = {number: size for number, size in there.items() if number < first}
        listed = [at(str(number), 0, size) for number, size in there.items()]
        for start in range(0, len(listed), 700):
            page = listed[start : start + 700]
            new = stored.take(*page)
            assert new == [one for one in page if key(one) not in expected]
            expected.update(key(one) for one in page)
            if data.draw(st.booleans()):
                stored.restart()
                for earlier in range(0, start + 700, 700):
                    stored.seen.new(PATH, listed[earlier : earlier + 700])
        stored.seen.passed([PATH], NOW)
        stored.write()
        expected = {key(one) for one in listed}
        if data.draw(st.booleans()):
            stored.restart()
    total = sum(len(data) for data in stored.buckets.values())
    assert total <= 8 * len(expected) + 40 * len(stored.buckets)


@pytest.mark.slow
@pytest.mark.parametrize("random", [False, True])
def test_page_rewrites_at_most_a_few_buckets_of_a_large_set(random: bool) -> None:
    def names(count: int, day: int) -> list[Listed]:
        return [
            at(str(uuid.uuid5(uuid.NAMESPACE_URL, f"{day}.{n}")) if random else f"{day}/{n:05}.gz")
            for n in range(count)
        ]

    stored = Stored("any")
    stored.take(*names(100_000, 1))
    assert len(stored.buckets) == 23
    stored.take(*names(1000, 2))
    assert stored.written <= 3
    stored.take(*names(1, 3))
    assert stored.written == 1
    size = sum(len(data) for data in stored.buckets.values())
    assert size < 7.1 * 101_001


@pytest.mark.slow
def test_removed_objects_free_their_room() -> None:
    stored = Stored("any")
    listed = [at(f"{number}") for number in range(50_000)]
    stored.take(*listed)
    stored.seen.passed([PATH], NOW)
    stored.seen.new(PATH, listed[::50])
    stored.seen.passed([PATH], NOW)
    stored.write()
    assert len(stored.buckets) == 1
    stored.restart()
    assert stored.take(*listed[:51]) == listed[1:50]


def test_rewritten_object_is_new_where_rewrites_count() -> None:
    for rewritten in (True, False):
        stored = Stored("any", rewritten=rewritten)
        stored.take(at("a"))
        for changed in (at("a", 1), at("a", 0, 2), at("a")._replace(tag="x")):
            assert bool(stored.seen.new(PATH, [changed])) == rewritten


def test_query_of_a_location_does_not_distinguish_objects() -> None:
    stored = Stored("any")
    one = Listed("s3a://lake/a?region=x", 1, NOW)
    stored.take(one)
    assert stored.seen.new(PATH, [one._replace(location="s3a://lake/a?region=y")]) == []


def test_names_are_seen_up_to_the_last_one_of_their_path() -> None:
    stored = Stored("name")
    assert stored.take(at("b"), at("c")) == [at("b"), at("c")]
    stored.restart()
    assert stored.seen.after(PATH) == "/in/c"
    assert stored.take(at("a"), at("c", 9), at("c1")) == [at("c1")]
    assert stored.seen.new("/in/a*", [at("a")]) == [at("a")]
    assert list(stored.buckets) == [name for name in stored.buckets if name.startswith("mark-")]


def test_times_are_forgotten_when_all_is_listed() -> None:
    stored = Stored("modified")
    old = [at(f"old{number}", -1000 + number) for number in range(500)]
    assert stored.take(at("a", -1), *old[:250]) == [at("a", -1), *old[:250]]
    assert stored.take(*old[250:]) == old[250:]
    stored.seen.passed([PATH], NOW)
    for _ in range(2):
        stored.write()
        stored.restart()
        assert stored.take(at("a", -1), *old, at("older", -12)) == []
        stored.seen.passed([PATH], NOW)
    stored.write()
    assert sum(len(data) for data in stored.buckets.values()) < 100
    assert stored.take(at("late", -10)) == [at("late", -10)]
    assert stored.take(at("late", -10)) == []


def test_object_dated_in_the_future_hides_no_other() -> None:
    stored = Stored("modified")
    stored.take(at("future", 5000))
    for seconds in range(0, 60, 20):
        stored.seen.new(PATH, [at("later", 6000)])
        stored.seen.passed([PATH], NOW + seconds * SECOND)
        stored.write()
        stored.restart()
        new = at(f"new{seconds}", seconds - 5)
        assert stored.take(at("future", 5000), new) == [new]


def test_new_object_that_is_no_item_yet_stays_new() -> None:
    stored = Stored("modified")
    waits = at("waits", -100)
    for _ in range(3):
        assert stored.seen.new(PATH, [waits]) == [waits]
        stored.take(at("taken", 0))
        stored.seen.passed([PATH], NOW)
        stored.write()
    assert stored.take(waits) == [waits]


def test_damaged_buckets_are_reported() -> None:
    for order, name in (("any", "tail"), ("any", "000000"), ("name", "mark-1")):
        with pytest.raises(CorruptError, match=name):
            seen(order, rewritten=True, window_seconds=1, buckets={name: b"x"})  # type: ignore[arg-type]


def test_an_object_is_settled_when_it_is_old_or_was_seen_unchanged() -> None:
    settling = Settling(10)
    assert settling.is_settled(at("old", -10), NOW, 0)
    assert not settling.is_settled(at("young", -9), NOW, 0)
    assert settling.is_settled(at("young", -9), NOW + SECOND, 1)
    for now in range(3):
        assert not settling.is_settled(at("future", 5000), NOW, now * 4)
    assert settling.is_settled(at("future", 5000), NOW, 12)
    assert Settling(0).is_settled(at("future", 5000), NOW, 0)


def test_object_that_changes_is_not_settled_however_old_it_looks() -> None:
    """The clock of its store is an hour behind."""
    settling = Settling(10)
    assert not settling.is_settled(at("a", -9), NOW, 0)
    for size in range(2, 5):
        assert not settling.is_settled(at("a", -3600, size), NOW, size * 100)
    assert settling.is_settled(at("a", -3600, 4), NOW, 401)


def test_no_object_overtakes_a_waiting_one_in_an_order() -> None:
    settling = Settling(10)
    page = [at("a", -20), at("b", 60), at("c", -20), at("d", 60)]
    assert settling.settled(page, NOW, 0) == [page[0], page[2]]
    assert settling.settled(page, NOW, 0, in_order=True) == page[:1]
    settling.passed()
    assert settling.settled(page[1:], NOW, 10, in_order=True) == page[1:]


def test_waiting_state_is_forgotten_with_its_object() -> None:
    settling = Settling(10)
    settling.settled([at("a", 60), at("b", 60)], NOW, 0)
    settling.passed()
    assert not settling.is_settled(at("a", 60), NOW, 5)
    settling.passed()
    assert len(settling) == 1
    settling.passed()
    assert len(settling) == 0
