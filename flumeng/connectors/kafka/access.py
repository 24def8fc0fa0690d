"""Connection settings of Kafka clients in all processes. Executors get the password inside the
serialized reader, never in a Spark property, which event log and web pages show."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import Any

from flumeng.connectors.kafka.broker_options import KafkaBrokers
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.platform.scrubbing import Secret
from flumeng.platform.secrets import resolve

quiet = logging.getLogger(f"{__name__}.librdkafka")
"""Discards librdkafka's log, which would go to stderr; errors are reported by ``error_cb``."""
quiet.addHandler(logging.NullHandler())
quiet.propagate = False


def connection(options: KafkaBrokers, password: Secret | None) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(options.brokers),
        "client.id": "flumeng",
        "reconnect.backoff.max.ms": 1000,
        "security.protocol": _protocol(options),
        "logger": quiet,
    }
    if options.tls is not None:
        paths = (options.tls.ca, options.tls.certificate, options.tls.key)
        names = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
        settings |= {name: path for name, path in zip(names, paths, strict=True) if path}
    if password is not None:
        settings |= {
            "sasl.mechanism": options.mechanism,
            "sasl.username": options.username,
            "sasl.password": str(password),
        }
    return settings


def _protocol(options: KafkaBrokers) -> str:
    if options.username is None:
        return "PLAINTEXT" if options.tls is None else "SSL"
    return "SASL_PLAINTEXT" if options.tls is None else "SASL_SSL"


AHEAD_KBYTES = 1024
"""Bound of the consumer's prefetch: data beyond the end of a range is fetched in vain."""


@dataclass(frozen=True)
class Access:
    """Brokers, credentials and client id; flows with equal ones share clients."""

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
    """Return a groupless consumer's settings. ``committed``: skip uncommitted transactions."""
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
