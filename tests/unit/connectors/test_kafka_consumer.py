"""Settings that librdkafka refuses before it connects are errors for a person to fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flumeng.config.client_tls import ClientTls
from flumeng.connectors.kafka.access import Access, consumer_settings
from flumeng.connectors.kafka.consumer import RangeConsumer
from flumeng.connectors.kafka.errors import KafkaException
from flumeng.connectors.kafka.librdkafka import Client
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.platform.errors import UserError

BROKER = "127.0.0.1:1"


def source(**options: Any) -> KafkaSource:
    return KafkaSource(brokers=(BROKER,), topics=("t",), **options)


def test_invalid_setting_is_refused() -> None:
    settings = consumer_settings(Access.of(source()), committed=True)
    for wrong in ({"no.such.setting": True}, {"socket.timeout.ms": "soon"}):
        with pytest.raises(KafkaException, match=next(iter(wrong))):
            Client(settings | wrong, print)


def test_missing_authority_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    secured = Access.of(source(tls=ClientTls(ca=str(missing))))
    with pytest.raises(UserError, match=rf"kafka {BROKER}: ssl.ca.location"):
        RangeConsumer(secured, committed=False)


@pytest.mark.slow
def test_client_without_a_broker_can_be_closed() -> None:
    told: list[Any] = []
    client = Client(consumer_settings(Access.of(source()), committed=True), told.append)
    client.assign("t", 0, 0)
    with client.take(10, 0.3) as taken:
        assert len(taken.records) == 0
    client.unassign()
    client.close()
    assert any("Connection refused" in error.str() or "down" in error.str() for error in told)
