"""Transactions are weighed as ZooKeeper counts them, and too large ones are never sent."""

from __future__ import annotations

import random
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData, Transaction

from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Check,
    Put,
    Remove,
    Version,
    Write,
    access_lists,
    data_of,
)
from flumeng.control.zookeeper.transaction import (
    MOST_WRITES,
    OPEN,
    Scale,
    TooLargeError,
    first_that_fit,
    portions,
    singly,
)
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.access import ANY_OPERATOR, NAMED, Secured

GROUPS = tuple((group, group) for group in (*NAMED, ANY_OPERATOR))
SECURED = Secured("c", ("operator:al@web",), GROUPS)
REQUEST_HEADER = 8
WRITES: tuple[Write, ...] = (
    Put(paths.flows(), None, ABSENT),
    Put(paths.flow("web"), records.Flow(revision=1), ABSENT),
    Put(paths.assignment("n1"), records.Assignment(), ABSENT),
    Put(paths.flow("web"), records.Flow(revision=2), Version(3)),
    Put(
        paths.revision("web", "1"),
        records.Revision(text="é" * 9000, author="a", reason="", time=0.0),
        ABSENT,
    ),
    Remove(paths.flow("web"), ANY),
    Check(paths.flow("web"), Version(0)),
)


def sent(write: Write, scale: Scale, chroot: str) -> object:
    path = chroot + str(write.path)
    if isinstance(write, Check):
        return CheckVersion(path, 0)
    if isinstance(write, Remove):
        return Delete(path, -1)
    data = data_of(write.path, write.value)
    if write.expect is not ABSENT:
        return SetData(path, data, 3)
    secured = scale.secured
    entries = access_lists.expected(str(write.path), secured) if secured else OPEN
    return Create(path, data, access_lists.to_kazoo(entries), 0)


@pytest.mark.parametrize("secured", [None, SECURED])
@given(st.lists(st.sampled_from(WRITES)), st.sampled_from(["", "/sites/füerth"]))
def test_transaction_size_equals_the_serialized_request(
    secured: Secured | None, writes: list[Write], chroot: str
) -> None:
    scale = Scale(len(chroot.encode()), secured)
    request = Transaction([sent(one, scale, chroot) for one in writes])
    assert scale.total(writes) == REQUEST_HEADER + len(request.serialize())


def noise(number: int, size: int = 300_000) -> Put:
    text = random.Random(number).randbytes(size).hex()
    return Put(
        paths.revision("web", str(number)),
        records.Revision(text=text, author="a", reason="", time=0.0),
        ABSENT,
    )


def test_fake_store_refuses_transactions_that_a_server_refuses() -> None:
    store = FakeStore()
    for path in (paths.flows(), paths.flow("web"), paths.revisions("web")):
        value = records.Flow(revision=1) if path.row.record else None
        store.write(path, value, ABSENT)
    with pytest.raises(TooLargeError, match="at most 1048575") as raised:
        store.commit([noise(n) for n in range(4)])
    assert "/flows/web/revisions/0 and 3 more writes takes" in str(raised.value)
    assert store.children(paths.revisions("web")) == []
    (refused, done) = store.commit_each([[noise(n) for n in range(4)], [noise(9)]])
    assert isinstance(refused, TooLargeError)
    assert done is None


@pytest.mark.slow
def test_access_lists_count_for_the_weight() -> None:
    many = Secured("c", tuple(f"operator:o{n:05}@web" for n in range(5_000)), GROUPS)
    write = Put(paths.flow("web"), records.Flow(revision=1), ABSENT)
    assert Scale(secured=many).weigh(write) > 30 * 5_000


@pytest.mark.slow
def test_groups_of_writes_are_kept_whole_and_in_order() -> None:
    groups = [[noise(n), noise(n + 1)] for n in range(0, 8, 2)]
    scale = Scale()
    parts = [list(chain.from_iterable(part)) for part in portions(scale, groups, list)]
    assert list(chain.from_iterable(parts)) == list(chain.from_iterable(groups))
    assert [len(part) for part in parts] == [2, 2, 2, 2], "each takes 600,000 bytes"
    assert all(map(scale.fits, parts))


def test_group_that_can_never_fit_is_refused_by_name_after_those_before_it() -> None:
    groups = [[noise(1)], [noise(n) for n in range(2, 6)], [noise(7)]]
    parts = portions(Scale(), groups, list)
    assert len(next(parts)) == 1
    with pytest.raises(TooLargeError, match="/flows/web/revisions/2 and 3 more writes"):
        next(parts)


def test_writes_repeated_in_each_part_and_reserved_room_are_counted() -> None:
    scale = Scale(limit_bytes=2_000)
    each = [Check(paths.flow("x" * 200), Version(0))]
    removals = [Remove(paths.flow(f"{n:04}"), ANY) for n in range(200)]
    parts = list(singly(scale, removals, each=each, room_bytes=500))
    assert list(chain.from_iterable(parts)) == removals
    assert all(scale.fits([*each, *part], 500) for part in parts)
    assert not any(scale.fits([*each, *part, removals[0]], 500) for part in parts[:-1])


def test_one_transaction_has_a_bounded_number_of_writes() -> None:
    removals = [Remove(paths.flow(f"{n}"), ANY) for n in range(2 * MOST_WRITES + 1)]
    assert [len(part) for part in singly(Scale(), removals)] == [MOST_WRITES, MOST_WRITES, 1]


@given(st.integers(0, 40), st.integers(0, 50))
def test_longest_prefix_that_fits_is_taken(count: int, most: int) -> None:
    items = list(range(count))
    taken = first_that_fit(items, lambda some: len(some) <= most)
    assert list(taken) == items[: max(1, most)]
