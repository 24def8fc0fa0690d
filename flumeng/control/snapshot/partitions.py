"""The partitions of flows: journals, and partitions found by discovery. A node registers each of
its journals in a separate znode. The flow's discovery task finds all others and registers them in
``/flows/FLOW/partitions``. Users of this module need not distinguish the two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flumeng.control.snapshot import discovered, journal_registry
from flumeng.control.snapshot.journal_registry import Source
from flumeng.control.zookeeper import Check, Found, Store, Unreadable, Versioned
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, Journal, Partition, Partitions
from zkschema.table import ZPath

JOURNAL = "journal"
FLOW = "flow"
"""Input of flows that read other flows: ``J@flow`` is the journal ``J`` of another flow."""

SITE = "site"
"""Input of flows that read other sites: ``S:J@site`` is the journal ``J`` of site ``S``."""

OBJECTS = "objects"
"""Input of flows that read objects: partitions are lanes of a work queue."""
POLLS = "polls"
"""Input of flows that poll: their one partition is a lane of due times."""
QUEUED = (OBJECTS, POLLS)
POSITION_BITS = 38
"""A lane's offset is an item's number, followed by a position of this many bits."""


def input_of(partition: str) -> str:
    """Return the name after the ``@``, as in ``orders.3@kafka``; ``journal`` for a journal."""
    before, _, name = partition.rpartition("@")
    return name if before else JOURNAL


def step_of(partition: str) -> int:
    """Return by how much offsets grow per event, or per item of a lane."""
    return 1 << POSITION_BITS if input_of(partition) in QUEUED else 1


def distance(partition: str, start: int, end: int) -> int:
    """Return the events or items between two offsets; a partial item counts as one."""
    return -(-(end - start) // step_of(partition))


def key(flow: str, partition: str) -> str:
    """Return the partition's name that is unique among all flows; a journal's name already is."""
    return partition if input_of(partition) == JOURNAL else f"{flow}/{partition}"


def journal_of(partition: str) -> str:
    return partition.removesuffix(f"@{FLOW}")


def subscribed(journal: str) -> str:
    """Return the partition name of a journal in a flow that reads the journal's flow."""
    return f"{journal}@{FLOW}"


def remote_partition(site: str, journal: str) -> str:
    """Return the partition name of a journal in a flow that reads another site."""
    return f"{site}:{journal}@{SITE}"


def ack_path(flow: str, partition: str) -> ZPath[Ack]:
    """Return the path of the flow's ack; that of ``J@flow`` is in a cursor of J's flow."""
    if input_of(partition) == FLOW:
        journal = journal_of(partition)
        return paths.ack(journal.partition(".")[0], flow, journal)
    return paths.ack(flow, CURSOR_MAIN, partition)


def label_of(partition: str) -> str:
    """Return the name for users: ``orders.3`` of ``orders.3.MkTRfQ2n@kafka``; a journal's name."""
    before, at, _ = partition.rpartition("@")
    if not at:
        return partition
    label, dot, _ = before.rpartition(".")
    return label if dot else before


@dataclass(frozen=True)
class PartitionBounds:
    """The offsets of a partition. New cursors begin at ``start``. ``end``: None while open.
    ``node``: a journal's primary, which knows the end of an open journal; "" for others."""

    start: int = 0
    end: int | None = None
    node: str = ""


@dataclass(frozen=True)
class Registered:
    """A registered partition. ``check`` fails once its record changes or is removed."""

    start: int
    check: Check


def of_flows(source: Source, flows: Iterable[str]) -> dict[str, dict[str, PartitionBounds]]:
    """Return each flow's partitions by name. Only journals are included if unreadable: as open."""
    by_flow: dict[str, dict[str, PartitionBounds]] = {name: {} for name in flows}
    for name, journal in journal_registry.journals(source).items():
        if journal.flow in by_flow:
            by_flow[journal.flow][name] = of_journal(journal)
    for bounds, record in zip(by_flow.values(), discovered.read(source, by_flow), strict=True):
        if isinstance(record, Versioned):
            bounds |= {name: of_discovered(part) for name, part in record.value.partitions.items()}
    return by_flow


def of_journal(journal: Journal) -> PartitionBounds:
    return PartitionBounds(end=(journal.end or 0) if journal.closed else None, node=journal.primary)


def of_discovered(partition: Partition) -> PartitionBounds:
    return PartitionBounds(partition.start, partition.end)


def registration(flow: str, partition: str) -> ZPath[Journal] | ZPath[Partitions]:
    if input_of(partition) == JOURNAL:
        return paths.journal(partition)
    return paths.partitions(flow)


def registered(store: Store, flow: str, names: Sequence[str]) -> dict[str, Registered]:
    """Return the registered ones of these. Raises CorruptError, UserError, UnavailableError."""
    registrations: dict[str, Registered] = {}
    journals = [name for name in names if input_of(name) == JOURNAL]
    read = store.read_each([paths.journal(name) for name in journals])
    for name, journal in zip(journals, read, strict=True):
        if journal is not None:
            registrations[name] = Registered(0, Check(paths.journal(name), journal.version))
    if len(journals) == len(names):
        return registrations
    path = paths.partitions(flow)
    (record,) = discovered.read(store, [flow])
    if isinstance(record, Unreadable):
        raise record.error
    partitions: Mapping[str, Partition] = record.value.partitions if record else {}
    for name in names:
        if record is not None and name in partitions:
            registrations[name] = Registered(partitions[name].start, Check(path, record.version))
    return registrations


def is_drained(bounds: PartitionBounds, ack: Found[Ack]) -> bool:
    """Return whether the partition is closed and fully acked; False for an unreadable ack."""
    if isinstance(ack, Unreadable):
        return False
    return bounds.end is not None and (ack.value.offset if ack else bounds.start) >= bounds.end
