"""The adapter to Kafka's admin client: topic ids and the offsets of partitions. Requests return
futures. One client serves all threads of a process."""

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
"""Margin for librdkafka to report its own timeout of a request."""
Bound = Literal["earliest", "latest"] | datetime
"""A time stands for the first message that is not older; there may be none."""
_OffsetSpec: Any = confluent_kafka.admin.__dict__["OffsetSpec"]


class KafkaAdmin:
    """The constructor raises UserError for invalid settings. Read futures with ``answer``."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._trouble: Any = None
        settings = access.settings | {"error_cb": self._note, "socket.timeout.ms": 10_000}
        try:
            self._client = AdminClient(settings)
        except KafkaException as error:
            raise UserError(f"{access}: {error.args[0].str()}") from error

    def names(self) -> list[str]:
        """All visible topics. Blocks, and raises like ``answer``."""
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
        """The offset of ``bound`` in each partition: one request to each broker."""
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
        """Wait for a result, for a bounded time. Raises UnavailableError or UserError."""
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
        """Keeps the last connection error, except "all brokers are down", which names no cause."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error


@lru_cache(maxsize=64)
def shared(access: Access) -> KafkaAdmin:
    return KafkaAdmin(access)
