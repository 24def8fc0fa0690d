"""The librdkafka settings common to all Kafka clients of flumeng."""

from __future__ import annotations

import logging
from typing import Any

from flumeng.connectors.kafka.broker_options import KafkaBrokers
from flumeng.platform.scrubbing import Secret

quiet = logging.getLogger(f"{__name__}.librdkafka")
"""Discards the log that librdkafka would print on stderr; errors come by ``error_cb``."""
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
