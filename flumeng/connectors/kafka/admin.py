"""Adapter to Kafka's admin client. Requests return futures. One client serves all threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

import confluent_kafka.admin
from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from flumeng.connectors.kafka.access import Access
from flumeng.connectors.kafka.errors import (
    AUTHENTICATION,
    KafkaError,
    KafkaException,
    meaning,
    require_reader,
)
from flumeng.connectors.kafka.partition_names import id_text
from flumeng.platform.errors import FlumengError, UnavailableError, UserError

require_reader()
ANSWER_SECONDS = 5.0
GRACE_SECONDS = 2.0
"""Extra waiting time, in which librdkafka reports its own timeout of a request."""
Bound = Literal["earliest", "latest"] | datetime
"""A position in a partition. A time means the first message that is not older, if any."""
_OffsetSpec: Any = confluent_kafka.admin.__dict__["OffsetSpec"]


class KafkaAdmin:
    """Client for admin requests. The constructor raises UserError for invalid settings."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._trouble: Any = None
        settings = access.settings | {"error_cb": self._note, "socket.timeout.ms": 10_000}
        try:
            self._client = AdminClient(settings)
        except KafkaException as error:
            raise UserError(f"{access}: {error.args[0].str()}") from error

    def names(self) -> list[str]:
        """Return all visible topics. Blocks, and raises like ``answer``."""
        try:
            return sorted(self._client.list_topics(timeout=ANSWER_SECONDS).topics)
        except KafkaException as error:
            raise self._meaning(error.args[0]) from error

    def topics(self, names: Iterable[str]) -> dict[str, Future[Any]]:
        futures: dict[str, Future[Any]] = self._client.describe_topics(
            TopicCollection(list(names)), request_timeout=ANSWER_SECONDS
        )
        return futures

    def offsets(
        self, partitions: Collection[tuple[str, int]], bound: Bound, *, committed: bool
    ) -> dict[tuple[str, int], Future[Any]]:
        """Request the offset of ``bound`` in each partition, with one request to each broker."""
        if isinstance(bound, datetime):
            spec = _OffsetSpec.for_timestamp(int(bound.timestamp() * 1000))
        else:
            spec = _OffsetSpec.earliest() if bound == "earliest" else _OffsetSpec.latest()
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        futures: Mapping[Any, Future[Any]] = self._client.list_offsets(
            {TopicPartition(*partition): spec for partition in partitions},
            isolation_level=level,
            request_timeout=ANSWER_SECONDS,
        )
        return {(each.topic, each.partition): future for each, future in futures.items()}

    def answer(self, future: Future[Any]) -> Any:
        """Wait for a result for a limited time. Raises UnavailableError, UserError."""
        try:
            result = future.result(ANSWER_SECONDS + GRACE_SECONDS)
            self._trouble = None
            return result
        except KafkaException as error:
            raise self._meaning(error.args[0]) from error
        except TimeoutError as error:
            raise UnavailableError(f"{self._access}: no answer") from error

    def topic_id(self, future: Future[Any]) -> str:
        return id_text(str(self.answer(future).topic_id))

    def _meaning(self, error: Any) -> FlumengError:
        self._client.poll(0)  # reports connection errors through error_cb
        trouble = self._trouble
        if trouble is not None and trouble.code() in AUTHENTICATION:
            return meaning(trouble, self._access)
        if trouble is not None and error.code() == KafkaError._TIMED_OUT:
            return UnavailableError(f"{self._access}: no answer: {trouble.str()}")
        return meaning(error, self._access)

    def _note(self, error: Any) -> None:
        """Keep the last connection error, except "all brokers are down", which names no cause."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error


@lru_cache(maxsize=64)
def shared(access: Access) -> KafkaAdmin:
    return KafkaAdmin(access)
