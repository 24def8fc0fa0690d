"""Partitions ``SITE:JOURNAL@site`` of flows that read other sites."""

from __future__ import annotations

from flumeng.control.snapshot.partitions import SITE

LONGEST = 200
"""Most characters of a partition's name in ZooKeeper."""


def source_of(partition: str) -> str:
    """Return ``SITE:JOURNAL``, which is the ``journal`` of the events."""
    return partition.removesuffix(f"@{SITE}")


def site_of(partition: str) -> str:
    return partition.partition(":")[0]


def journal_of(partition: str) -> str:
    return source_of(partition).partition(":")[2]
