"""Translates the channels of Flume NG to the journal and durability of a flow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flumeng.config import SpecError, parse_flow
from flumeng_flume.answers import (
    Answers,
    Differs,
    Elsewhere,
    Missing,
    Needless,
    Options,
    To,
    fill,
    positive,
)
from flumeng_flume.findings import Location, Log
from flumeng_flume.ng import kafka
from flumeng_flume.ng.agents import Part

_ORDER = ("memory", "spill", "disk")
_DISKS = "journals lie in the data directory of each node"


@dataclass(frozen=True)
class Row:
    durability: str
    answers: Answers = field(default_factory=dict)
    but: str = ""


@dataclass
class Journal:
    """The journal for a channel; ``kafka`` has the options of a journal in Kafka."""

    durability: str
    location: Location | None = None
    options: dict[str, Any] = field(default_factory=dict)
    kafka: Options | None = None


def translate(part: Part, log: Log) -> Journal:
    kind = CLASSES.get(part.type.strip(), part.type.strip()).lower()
    row = ROWS.get(kind)
    if row is None:
        log.missing(
            part.type_location,
            f"durability: disk; flumeng does not know {part.type or 'a channel without a type'}",
        )
        row = Row("disk", {"*": Missing("belongs to a channel that is not mapped")})
    elif row.but:
        log.differs(part.type_location, f"durability: {row.durability}, but {row.but}")
    else:
        log.mapped(part.type_location, f"durability: {row.durability}")
    options = fill(part.settings, {**COMMON, **row.answers}, log)
    journal = Journal(row.durability, part.type_location)
    if kind == KAFKA:
        if kafka.brokers(part, options, log):
            options.values.setdefault("topic", "flume-channel")
            journal.kafka = options
    else:
        journal.options = {
            name: value for name, value in options.values.items() if _takes(name, value)
        }
        for name in options.values.keys() - journal.options.keys():
            log.differs(
                options.origins[name].location,
                f"{name}: flumeng's default, since it does not take this value",
            )
    return journal


def unneeded(part: Part, log: Log) -> None:
    """Report that a channel between Kafka and sinks needs no setting."""
    for setting in part.settings.values():
        log.mapped(
            setting.location, "nothing to set: Kafka keeps events until they are in the sinks"
        )


def joined(journals: Sequence[Journal], log: Log) -> Journal:
    """Return one journal for several channels with the same events: the most durable."""
    most = max(journals, key=lambda journal: _ORDER.index(journal.durability))
    for journal in journals:
        if journal.location is not None and journal.durability != most.durability:
            log.differs(journal.location, f"durability: {most.durability}; a flow has one journal")
    sizes = [
        journal.options["max_bytes"]
        for journal in journals
        if "max_bytes" in journal.options and journal.durability == most.durability
    ]
    options = {"max_bytes": max(sizes)} if sizes else {}
    kept = next((journal.kafka for journal in journals if journal.kafka is not None), None)
    return Journal(most.durability, most.location, {} if kept else options, kept)


def _takes(name: str, value: Any) -> bool:
    text = f"{{flow: a, sources: [generate], sinks: [noop], journal: {{{name}: {value}}}}}"
    try:
        parse_flow(text)
    except SpecError:
        return False
    return True


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15})\s*([kKmMgG]?)[bB]?", text.strip())
    if not match:
        return positive(text)
    return int(match[1]) << 10 * " kmg".index(match[2].lower() or " ")


COMMON: Answers = {
    "type": Elsewhere(),
    "transactionCapacity": Needless("flumeng sizes batches itself"),
    "keep-alive": Needless("senders wait until the journal takes more"),
}
_MEMORY: Answers = {
    "capacity": Differs("a journal is bounded in bytes (journal.max_bytes), not in events"),
    "byteCapacity": To("max_bytes", _bytes),
    "byteCapacityBufferPercentage": Needless("journal.max_bytes counts all of an event"),
}
_FILE: Answers = {
    "checkpointDir": Differs(_DISKS),
    "dataDirs": Differs(_DISKS),
    "useDualCheckpoints": Needless("a journal checks itself"),
    "backupCheckpointDir": Needless("a journal checks itself"),
    "compressBackupCheckpoint": Needless("a journal checks itself"),
    "checkpointInterval": Needless("events are synced before their sender is answered"),
    "checkpointOnClose": Needless("events are synced before their sender is answered"),
    "capacity": Differs("a journal is bounded in bytes (journal.max_bytes), not in events"),
    "maxFileSize": Needless("flumeng cuts segments itself"),
    "minimumRequiredSpace": Differs("the free space of a disk is a setting of the node"),
    "use-log-replay-v1": Needless("journals have a single way of reading"),
    "use-fast-replay": Needless("journals have a single way of reading"),
    "encryption.*": Missing("encrypt the disks of the data directories"),
    "fsyncPerTransaction": Needless("events are synced before their sender is answered"),
    "fsyncInterval": Needless("events are synced before their sender is answered"),
}
KAFKA = "org.apache.flume.channel.kafka.kafkachannel"
ROWS: Mapping[str, Row] = {
    "memory": Row("memory", _MEMORY),
    "file": Row("disk", _FILE),
    "spillablememory": Row(
        "spill",
        {
            **_FILE,
            "memoryCapacity": Differs("all events are written to disk, and synced a second later"),
            "overflowCapacity": Differs("a journal is bounded in bytes (journal.max_bytes)"),
            "overflowTimeout": Needless("all events are written to disk"),
            "overflowDeactivationThreshold": Needless("all events are written to disk"),
            "byteCapacity": Differs("a journal is bounded by journal.max_bytes"),
            "byteCapacityBufferPercentage": Needless("all events are written to disk"),
            "avgEventSize": Needless("sizes are known"),
        },
    ),
    KAFKA: Row(
        "disk",
        {
            "kafka.topic": To("topic"),
            "topic": To("topic"),
            "parseAsFlumeEvent": Elsewhere(),
            "kafka.consumer.group.id": Differs(kafka.OFFSETS),
            "groupId": Differs(kafka.OFFSETS),
            "migrateZookeeperOffsets": Differs(kafka.OFFSETS),
            "readSmallestOffset": Differs(kafka.OFFSETS),
            "pollTimeout": Needless("flumeng chooses the time-outs of Kafka itself"),
            "kafka.pollTimeout": Needless("flumeng chooses the time-outs of Kafka itself"),
            "defaultPartitionId": Missing("messages of one host go into one partition"),
            "partitionIdHeader": Missing("messages of one host go into one partition"),
            **kafka.CONNECTION,
            "kafka.consumer.*": Needless("flumeng reads Kafka with settings of its own"),
            "kafka.producer.*": Needless("flumeng writes Kafka with settings of its own"),
        },
    ),
    "jdbc": Row(
        "disk",
        {"*": Needless("no database is needed for a journal")},
        "the journal is on the disk of each node, in no database",
    ),
    "org.apache.flume.channel.pseudotxnmemorychannel": Row("memory", _MEMORY),
}
CLASSES: Mapping[str, str] = {
    "org.apache.flume.channel.MemoryChannel": "memory",
    "org.apache.flume.channel.file.FileChannel": "file",
    "org.apache.flume.channel.SpillableMemoryChannel": "spillablememory",
    "org.apache.flume.channel.jdbc.JdbcChannel": "jdbc",
}
