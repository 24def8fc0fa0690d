"""How the brokers of a source are reached, as clients in every process need it.

The collector looks the password up; executors get it inside of what they run, as those of sinks,
and never in a property of a job, which Spark's event log and pages show.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from flumeng.connectors.kafka.broker_options import KafkaBrokers
from flumeng.connectors.kafka.client import connection
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.platform.scrubbing import Secret
from flumeng.platform.secrets import resolve

AHEAD_KBYTES = 1024
"""What lies behind the end of a range is fetched for nothing."""


@dataclass(frozen=True)
class Access:
    """Equal for all flows that read the same brokers as the same user and client."""

    brokers: KafkaBrokers
    password: Secret | None
    client_id: str

    @classmethod
    def of(cls, source: KafkaSource) -> Access:
        """Raises UserError when the password is nowhere."""
        shared = {field.name: getattr(source, field.name) for field in fields(KafkaBrokers)}
        password = None if source.password is None else resolve(source.password)
        return cls(KafkaBrokers(**shared), password, source.client_id)

    @property
    def settings(self) -> dict[str, Any]:
        """Those of librdkafka."""
        return connection(self.brokers, self.password) | {"client.id": self.client_id}

    def __str__(self) -> str:
        return f"kafka {','.join(self.brokers.brokers)}"


def consumer_settings(access: Access, *, committed: bool) -> dict[str, Any]:
    """Of a consumer that is in no group. ``committed``: see the option ``isolation``."""
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
        # All of a range is there, so nobody waits for more: a fetch that does would hold up the
        # next range on the same connection.
        "fetch.wait.max.ms": 10,
        "socket.timeout.ms": 10_000,
    }
