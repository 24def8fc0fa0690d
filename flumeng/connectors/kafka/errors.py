"""The table of Kafka's errors: which a person has to mend, which pass, which mean damage.

Reader, finder, sink and journal ask here; no other module of flumeng names an error of Kafka but
for what one call means by it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError

NEEDS = "Kafka needs a package: pip install 'flumeng[kafka]'"
try:
    from confluent_kafka import KafkaError, KafkaException
except ImportError as missing:
    raise UserError(NEEDS) from missing

__all__ = ["KafkaError", "KafkaException", "meaning", "require_reader"]

NO_TOPIC = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.TOPIC_EXCEPTION,
)
AUTHENTICATION = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
PERSONS = (
    *NO_TOPIC,
    *AUTHENTICATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError._INVALID_ARG,
)
"""Errors that a person has to mend."""
DAMAGED = (
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError.INVALID_MSG,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._AUTO_OFFSET_RESET,
)
"""What is there makes no sense, or is there no more."""
PASSING = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_CACHE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
"""What librdkafka itself tries again."""
NOT_YET = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
"""What brokers say of a topic that they are about to create."""
REFUSED_ALONE = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
)
"""A broker that refuses a message for that refuses all that came with it in one request."""
GROUP = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""About consumer groups, of which nothing here makes use."""


def require_reader() -> None:
    """Raises UserError where numba is missing, which is imported only where messages are read."""
    if find_spec("numba") is None:
        raise UserError(NEEDS)


def meaning(error: Any, who: object) -> FlumengError:
    """What an error of librdkafka's client of ``who`` means."""
    text = f"{who}: {error.str()}"
    if error.code() in PERSONS:
        return UserError(text)
    return CorruptError(text) if error.code() in DAMAGED else UnavailableError(text)
