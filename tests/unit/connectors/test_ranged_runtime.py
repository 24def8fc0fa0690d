"""A ``RangedInput`` as its runtime reads it.

Protects that partitions may have any name outside, and that no event of a partition is taken for
one of the partition that it replaced.
"""

from __future__ import annotations

import queue
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.connectors.api import Ends, RangedInput
from flumeng.connectors.api.finding import Before
from flumeng.connectors.api.ranged import Range, Reach
from flumeng.connectors.ranged.runtime import (
    REPLACED,
    RangedFinder,
    RangedReader,
    _Watcher,
    name_and_incarnation,
    partition_name,
)
from flumeng.control.snapshot.partitions import input_of
from flumeng.platform.errors import CorruptError, UserError


@dataclass
class Memory:
    """Partitions by name: incarnation and number of events."""

    partitions: dict[str, tuple[str, int]] = field(default_factory=dict)
    asked: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)


class MemoryInput(RangedInput):
    name = "memory"

    def __init__(self, options: Memory) -> None:
        self._memory = options

    def list(self) -> Mapping[str, str]:
        return {name: incarnation for name, (incarnation, _) in self._memory.partitions.items()}

    def ends(self, partitions: Collection[str]) -> Mapping[str, Ends]:
        known = self._memory.partitions
        return {
            name: Ends(0, known[name][1], incarnation=known[name][0])
            for name in partitions
            if name in known
        }

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        self._memory.asked.put(partition)
        _, size = self._memory.partitions[partition]
        yield pa.record_batch({"seq": pa.array(range(start, min(end, size)), pa.int64())})


@given(st.text(min_size=1, max_size=20), st.from_regex(r"[A-Za-z0-9_-]{1,30}", fullmatch=True))
def test_every_partition_name_is_decoded_back(name: str, incarnation: str) -> None:
    try:
        full = partition_name("memory", name, incarnation)
    except (UserError, UnicodeEncodeError):  # too long, or half of a character
        return
    assert name_and_incarnation(full) == (name, incarnation)
    assert input_of(full) == "memory"
    assert set(full) <= {*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@"}


@pytest.mark.parametrize("name", ["orders", "a.b-c_d", "_x_", "x41_"])
def test_partition_name_adds_incarnation_and_source(name: str) -> None:
    assert partition_name("memory", name, "i1") == f"{name}.i1@memory"


@pytest.mark.parametrize(
    ("name", "incarnation"), [("", "i"), ("n" * 151, "i"), ("é" * 31, "i"), ("n", ""), ("n", "a.b")]
)
def test_name_that_is_too_long_is_refused(name: str, incarnation: str) -> None:
    with pytest.raises(UserError, match="invalid name of a partition"):
        partition_name("memory", name, incarnation)


def test_partition_is_found_and_read_under_its_own_name() -> None:
    memory = Memory({"c d:é.txt": ("i1", 3)})
    found = RangedFinder(MemoryInput(memory)).find(Before())
    (full,) = found.offers
    (events,) = RangedReader(MemoryInput, memory).read(Range(full, 0, 3), "")
    assert events.column("seq").to_pylist() == [0, 1, 2]
    assert memory.asked.get_nowait() == "c d:é.txt"


@pytest.mark.parametrize("size", [3, 0])
def test_events_of_a_replaced_partition_are_not_passed_on(size: int) -> None:
    memory = Memory({"p": ("i2", size)})
    with pytest.raises(CorruptError, match=f"p {REPLACED}"):
        list(RangedReader(MemoryInput, memory).read(Range("p.i1@memory", 0, 3), "i1"))
    assert RangedFinder(MemoryInput(memory)).bounds(["p.i1@memory"]) == {}


def test_both_incarnations_of_a_partition_are_watched_apart() -> None:
    watcher = _Watcher(MemoryInput(Memory({"p": ("i2", 3)})))
    reached = watcher.ask(frozenset({"p.i1@memory", "p.i2@memory"}))
    assert reached == {"p.i1@memory": Reach("", 0, trouble=REPLACED), "p.i2@memory": Reach("i2", 3)}
