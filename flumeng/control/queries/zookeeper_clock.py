"""ZooKeeper's clock, by which leases end, as far as the last writes of live masters tell it."""

from __future__ import annotations

from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Versioned
from zkschema import paths

SLACK_SECONDS = 30.0
"""A master may write its record late by so much."""


def zookeeper_now(cache: ReadCache, now: float) -> float:
    """Return ``now``, in epoch seconds by a clock here, or the nearest time that agrees with the
    records that live masters renew."""
    names = cache.children(paths.live_masters())
    found = cache.read_each([paths.live_master(name) for name in names])
    masters = [record for record in found if isinstance(record, Versioned) and record.written]
    if not masters:
        return now
    newest = max(masters, key=lambda record: record.written)
    latest = newest.written + newest.value.renew_seconds + SLACK_SECONDS
    return min(max(now, newest.written), latest) if newest.value.renew_seconds else now
