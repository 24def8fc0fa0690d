"""The partitions of flows, of whatever input: journals, and what discovery tasks have found.

A journal is registered by the node that makes it, in a znode of its own. All other partitions are
found by the flow's discovery task, which alone writes ``/flows/F/partitions``. Nobody else needs to
know which of the two a partition is.
"""

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
"""The input of flows that read other flows: ``J@flow`` is the journal ``J`` of another flow."""

OBJECTS = "objects"
"""The input of flows that read objects: their partitions are the lanes of a work queue."""
POLLS = "polls"
"""The input of flows that poll: their one partition is the lane of a queue of due times."""
QUEUED = (OBJECTS, POLLS)
POSITION_BITS = 38
"""An offset of a lane is the number of an item, and a position of so many bits in it."""


def input_of(partition: str) -> str:
    """Which input it is of: what follows the ``@`` in its name, as in ``orders.3@kafka``.

    The id of a journal has no ``@``. What stands before it is the input's own affair.
    """
    before, _, name = partition.rpartition("@")
    return name if before else JOURNAL


def step_of(partition: str) -> int:
    """How many offsets has what is counted there: an event, or an item of a lane."""
    return 1 << POSITION_BITS if input_of(partition) in QUEUED else 1


def distance(partition: str, start: int, end: int) -> int:
    """How many events lie between two of its offsets, or items of a lane; one of which a part
    lies there counts whole."""
    return -(-(end - start) // step_of(partition))


def key(flow: str, partition: str) -> str:
    """What the partition is called among those of all flows: a journal is of one flow."""
    return partition if input_of(partition) == JOURNAL else f"{flow}/{partition}"


def journal_of(partition: str) -> str:
    """The journal that it is, its flow's own or another's."""
    return partition.removesuffix(f"@{FLOW}")


def subscribed(journal: str) -> str:
    """What a journal is called among the partitions of a flow that reads its flow."""
    return f"{journal}@{FLOW}"


def ack_path(flow: str, partition: str) -> ZPath[Ack]:
    """Where the flow's ack of the partition is: a flow that reads another one's journals has a
    cursor of its own there, which keeps what it has not read. A journal's name begins with its
    flow's (see ``flumeng.events.journal_names``)."""
    if input_of(partition) == FLOW:
        journal = journal_of(partition)
        return paths.ack(journal.partition(".")[0], flow, journal)
    return paths.ack(flow, CURSOR_MAIN, partition)


def label_of(partition: str) -> str:
    """As its users call it: ``orders.3`` of ``orders.3.MkTRfQ2n@kafka``. What stands between the
    last dot and the ``@`` tells it from one of the same label; a journal has only its id."""
    before, at, _ = partition.rpartition("@")
    if not at:
        return partition
    label, dot, _ = before.rpartition(".")
    return label if dot else before


@dataclass(frozen=True)
class Known:
    """A partition that is registered. Cursors that never acked begin at ``start``. ``end`` is set
    once nothing more comes, and only ``node`` knows how far it reaches until then, if it is any's.
    """

    start: int = 0
    end: int | None = None
    node: str = ""


@dataclass(frozen=True)
class Registered:
    """``check`` fails once the partition is not registered any more."""

    start: int
    check: Check


def of_flows(source: Source, flows: Iterable[str]) -> dict[str, dict[str, Known]]:
    """Flow -> its registered partitions by name. What cannot be read of it is left out."""
    found: dict[str, dict[str, Known]] = {name: {} for name in flows}
    for name, journal in journal_registry.journals(source).items():
        if journal.flow in found:
            found[journal.flow][name] = of_journal(journal)
    for known, record in zip(found.values(), discovered.read(source, found), strict=True):
        if isinstance(record, Versioned):
            known |= {name: of_discovered(one) for name, one in record.value.partitions.items()}
    return found


def of_journal(journal: Journal) -> Known:
    return Known(end=(journal.end or 0) if journal.closed else None, node=journal.primary)


def of_discovered(partition: Partition) -> Known:
    return Known(partition.start, partition.end)


def registration(flow: str, partition: str) -> ZPath[Journal] | ZPath[Partitions]:
    """The znode in which the partition of the flow is registered."""
    if input_of(partition) == JOURNAL:
        return paths.journal(partition)
    return paths.partitions(flow)


def registered(store: Store, flow: str, names: Sequence[str]) -> dict[str, Registered]:
    """Those of these partitions that are registered. Raises CorruptError when the discovered ones
    cannot be read, UnavailableError."""
    found: dict[str, Registered] = {}
    journals = [name for name in names if input_of(name) == JOURNAL]
    read = store.read_each([paths.journal(name) for name in journals])
    for name, journal in zip(journals, read, strict=True):
        if journal is not None:
            found[name] = Registered(0, Check(paths.journal(name), journal.version))
    if len(journals) == len(names):
        return found
    path = paths.partitions(flow)
    (record,) = discovered.read(store, [flow])
    if isinstance(record, Unreadable):
        raise record.error
    known: Mapping[str, Partition] = record.value.partitions if record else {}
    for name in names:
        if record is not None and name in known:
            found[name] = Registered(known[name].start, Check(path, record.version))
    return found


def is_drained(known: Known, ack: Found[Ack]) -> bool:
    """Whether it takes no more events, and all that it has are acked. Where the ack cannot be read,
    nobody knows."""
    if isinstance(ack, Unreadable):
        return False
    return known.end is not None and (ack.value.offset if ack else known.start) >= known.end
