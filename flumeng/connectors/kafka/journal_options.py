"""A flow's journal in a topic of Kafka, for hosts without a disk to trust."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from flumeng.config.component import OutsideJournal
from flumeng.connectors.kafka.broker_options import KafkaBrokers
from flumeng.connectors.kafka.source_options import KafkaSource, check_topic
from flumeng.platform.options.option import Need, option


@dataclass(frozen=True, kw_only=True)
class KafkaJournal(KafkaBrokers, OutsideJournal):
    """Ingest workers produce the received events, one message an event, and collect tasks read the
    topic. Senders are answered when all replicas in sync have their events.

    A message has the body as its value, the host as its key, and the attributes as headers; its
    time is the event's, to the millisecond. How long messages are kept is set in Kafka: longer than
    the flow may ever be behind.
    """

    implementation: ClassVar[str] = "flumeng.connectors.kafka.journal:InKafka"

    topic: str = option(
        doc="The topic. It must exist and have no other writers.",
        check=check_topic,
        example="flumeng-web-logs",
    )
    compression: Literal["zstd", "lz4", "snappy", "gzip", "none"] = option(
        doc="The compression of messages.", default="lz4"
    )

    def needs(self) -> Iterator[Need]:
        for broker in self.brokers:
            yield "output", f"kafka://{broker}"

    @property
    def location(self) -> str:
        return f"Kafka, {self.topic}"

    @property
    def source(self) -> KafkaSource:
        shared = {field.name: getattr(self, field.name) for field in fields(KafkaBrokers)}
        return KafkaSource(topics=(self.topic,), **shared)
