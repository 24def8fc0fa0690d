"""Connection options that Kafka's source, sink and journal share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flumeng.config.client_tls import ClientTls
from flumeng.platform.options.option import option
from flumeng.platform.options.quantities import check_address


@dataclass(frozen=True, kw_only=True)
class KafkaBrokers:
    """Addresses of Kafka brokers and the credentials of the client."""

    brokers: tuple[str, ...] = option(
        doc="Some of the brokers, as host:port.",
        check=check_address,
        minimum=1,
        example='["kafka-1.example:9092", "kafka-2.example:9092"]',
    )
    tls: ClientTls | None = option(
        doc="TLS to the brokers; `{}` is enough where the host trusts them.", default=None
    )
    username: str | None = option(doc="The user of SASL.", example="flumeng", default=None)
    password: str | None = option(
        doc="The password of `username`.", example="${secret:kafka}", default=None, secret=True
    )
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = option(
        doc="The mechanism of SASL.", default="SCRAM-SHA-512"
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if (self.username is None) != (self.password is None):
            yield "", "expected username and password together"
        if self.mechanism == "PLAIN" and self.username is not None and self.tls is None:
            yield "mechanism", "PLAIN sends the password unencrypted, and needs tls"
