"""What becomes of the record of a flow's partitions when its sources were looked at. Pure.

Rules
1. A partition that is there and wanted is registered once; where it starts is decided then.
2. One that is not wanted any more, or not there, gets an ``end``, which is what is acked of it: its
   task drops it. One that is wanted again has none any more, and goes on where it was.
3. One that has ended, and that no task reads, is struck from the record. Its ack stays, so that it
   goes on there when it is wanted again; of one that is gone for good it goes too.
4. While not all sources have answered, nothing ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from flumeng.connectors.api.finding import Findings
from zkschema.records import Partition, Partitions


def leaving(before: Partitions, findings: Findings) -> list[str]:
    """Registered partitions that are not wanted, or missing."""
    if findings.troubles:
        return []
    stay = findings.offers.keys() | findings.kept
    return [name for name in before.partitions if name not in stay]


def merged(
    before: Partitions,
    findings: Findings,
    epoch: int,
    *,
    acks: Mapping[str, int],
    gone: Collection[str],
    forgotten: Collection[str],
    read: Collection[str],
) -> tuple[Partitions, list[str]]:
    """The new record, and the partitions whose acks are to be deleted.

    ``acks``: the known offsets of partitions that may end. Those that are ``gone`` are gone for
    certain, those ``forgotten`` for so long that their acks go; tasks still ``read`` the others.
    """
    partitions: dict[str, Partition] = {}
    unneeded: list[str] = []
    left = set(leaving(before, findings))
    for name, partition in before.partitions.items():
        acked = acks.get(name, partition.start)
        if name in findings.offers:
            after = replace(partition, end=findings.offers[name].end)
        elif name not in left:
            after = partition
        elif partition.end is None:
            uncertain = name in findings.gone and name not in gone
            after = partition if uncertain else replace(partition, end=acked)
        elif acked < partition.end or name in read:
            after = partition
        elif name not in findings.gone:
            continue
        elif name in forgotten:
            unneeded.append(name)
            continue
        else:
            after = partition
        partitions[name] = after
    for name, offer in findings.offers.items():
        if name not in partitions:
            partitions[name] = Partition(start=offer.start, end=offer.end)
    accepted = {key: to for key, to in before.accepted.items() if key in findings.held}
    after_all = replace(
        before,
        partitions=partitions,
        epoch=epoch,
        scope=before.scope if findings.troubles else tuple(sorted(findings.scope)),
        held=dict(findings.held),
        accepted=before.accepted if findings.troubles else accepted,
    )
    return after_all, unneeded


def is_read(partitions: Mapping[str, Partition], acks: Mapping[str, int]) -> bool:
    """Whether all of these have ends and are read."""
    return all(
        one.end is not None and acks.get(name, one.start) >= one.end
        for name, one in partitions.items()
    )
