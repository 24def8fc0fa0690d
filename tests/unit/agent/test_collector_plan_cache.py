"""The cache of prepared batches, and its eviction."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from flumeng.agent.collector.plan_cache import PlanCache
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.refreshed_table import Version

NONE: Any = None


def batch() -> LazyBatch:
    return LazyBatch(NONE, 1, None, (), pa.schema([]))


def test_batch_is_prepared_once_for_a_flow_its_splits_and_its_tables() -> None:
    kept = PlanCache()
    old, new = Version(pa.table({"a": [1]})), Version(pa.table({"a": [1]}))
    first = kept.take("web", 2, [old], batch)
    assert kept.take("web", 2, [old], batch) is first
    assert kept.take("api", 2, [old], batch) is not first
    assert kept.take("web", 3, [old], batch) is not first
    assert kept.take("web", 2, [new], batch) is not first
    assert kept.take("web", 2, [old], batch) is not first


def test_least_recently_used_batch_is_evicted() -> None:
    kept = PlanCache(most=2)
    first = kept.take("first", 1, [], batch)
    second = kept.take("second", 1, [], batch)
    assert kept.take("first", 1, [], batch) is first
    kept.take("third", 1, [], batch)
    assert kept.take("first", 1, [], batch) is first
    assert kept.take("second", 1, [], batch) is not second


def test_cached_tables_have_a_size_limit_of_their_own() -> None:
    large = [Version(pa.table({"a": [b"x" * 600]})) for _ in range(3)]
    kept = PlanCache(most_table_bytes=1000)
    first = kept.take("first", 1, large[:1], batch)
    second = kept.take("second", 1, large[1:2], batch)
    assert kept.take("second", 1, large[1:2], batch) is second
    assert kept.take("first", 1, large[:1], batch) is not first
    both = kept.take("both", 1, large[1:], batch)
    assert kept.take("both", 1, large[1:], batch) is both, "the newest one stays"


def test_failed_batch_is_forgotten() -> None:
    kept = PlanCache()
    web, api = kept.take("web", 1, [], batch), kept.take("api", 1, [], batch)
    kept.take("web", 2, [], batch)
    kept.forget("web")
    assert kept.take("api", 1, [], batch) is api
    assert kept.take("web", 1, [], batch) is not web
