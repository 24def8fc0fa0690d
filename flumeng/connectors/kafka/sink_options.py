"""The options of the sink ``kafka``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.component import SinkOptions
from flumeng.connectors.kafka.broker_options import KafkaBrokers
from flumeng.platform.options.option import Need, option

COLUMN = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check_topic(text: str) -> None:
    if not TOPIC.fullmatch(COLUMN.sub("x", text)):
        raise ValueError(
            "expected the name of a topic of letters, digits, ., _ and -, perhaps with columns in "
            'braces, like "logs.{app}"'
        )


@dataclass(frozen=True, kw_only=True)
class Kafka(KafkaBrokers, SinkOptions):
    """Produces each event as a message into Kafka, at least once.

    Brokers answer when all replicas in sync have a message. A batch that is repeated repeats its
    messages; `event_id` lets consumers recognise them.
    """

    implementation: ClassVar[str] = "flumeng.connectors.kafka.sink:KafkaSink"

    topic: str = option(
        doc="The topic. `{column}` stands for the text in that column; an event for a topic that "
        "does not exist is refused.",
        check=check_topic,
        example='"logs.{app}"',
    )
    value: Literal["json", "body"] = option(
        doc="The value of a message: the whole event as JSON, or the body alone.", default="json"
    )
    key: str | None = option(
        doc="The column with the key. Messages with the same key go into the same partition.",
        example="host",
        default=None,
    )
    headers: tuple[str, ...] = option(
        doc="Columns that become headers of the same name; each entry of a map such as `attrs` "
        "becomes a header.",
        example="[host, attrs]",
        default=(),
    )
    event_id: bool = option(
        doc="A header `event_id` with the event's journal and number: the same in each repetition.",
        default=False,
    )
    partitioner: Literal["murmur2_random", "consistent_random", "random"] = option(
        doc="The choice of the partition; `murmur2_random` is that of Java's clients, "
        "`consistent_random` that of librdkafka.",
        default="murmur2_random",
    )
    compression: Literal["zstd", "lz4", "snappy", "gzip", "none"] = option(
        doc="The compression of messages.", default="lz4"
    )
    timeout_seconds: float = option(
        doc="Time limit of a message, with all attempts.", between=(1, 50), default=30
    )

    def needs(self) -> Iterator[Need]:
        for broker in self.brokers:
            yield "output", f"kafka://{broker}"
        if self.tls is not None:
            yield from self.tls.needs()
