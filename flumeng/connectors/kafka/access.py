"""Connection settings of a Kafka source, for clients in all processes. Executors get the password
inside the serialized reader, never in a Spark property, which event log and web pages show."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from flumeng.connectors.kafka.broker_options import KafkaBrokers
from flumeng.connectors.kafka.client import connection
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.platform.scrubbing import Secret
from flumeng.platform.secrets import resolve

AHEAD_KBYTES = 1024
"""Bound of the consumer's prefetch: data behind the end of a range is fetched in vain."""


@dataclass(frozen=True)
class Access:
    """Brokers, credentials and client id: the key under which flows share clients."""

    brokers: KafkaBrokers
    password: Secret | None
    client_id: str

    @classmethod
    def of(cls, source: KafkaSource) -> Access:
        shared = {field.name: getattr(source, field.name) for field in fields(KafkaBrokers)}
        password = None if source.password is None else resolve(source.password)
        return cls(KafkaBrokers(**shared), password, source.client_id)

    @property
    def settings(self) -> dict[str, Any]:
        return connection(self.brokers, self.password) | {"client.id": self.client_id}

    def __str__(self) -> str:
        return f"kafka {','.join(self.brokers.brokers)}"


def consumer_settings(access: Access, *, committed: bool) -> dict[str, Any]:
    """The settings of a consumer without a group. ``committed``: see the option ``isolation``."""
    return access.settings | {
        "group.id": "flumeng",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "allow.auto.create.topics": False,
        "check.crcs": True,
        "queued.max.messages.kbytes": AHEAD_KBYTES,
        "fetch.queue.backoff.ms": 2,
        # All messages of a range exist already, so waiting for more is useless, and would delay the
        # next range on the same connection.
        "fetch.wait.max.ms": 10,
        "socket.timeout.ms": 10_000,
    }
