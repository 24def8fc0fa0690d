"""Classifies Kafka's errors: a person has to act, librdkafka retries, or data is damaged. Other
modules name a Kafka error only where it has a meaning in a single call."""

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
DAMAGED = (
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError.INVALID_MSG,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._AUTO_OFFSET_RESET,
)
"""Errors of corrupt or missing data."""
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
"""Errors that librdkafka retries."""
NOT_YET = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
"""Errors of a topic that the brokers are creating at the moment."""
REFUSED_ALONE = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
)
"""Errors caused by a single message, for which a broker refuses the whole request."""
GROUP = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""Errors of consumer groups, which flumeng does not use."""


def require_reader() -> None:
    """Raise UserError without numba, which is imported only where messages are read."""
    if find_spec("numba") is None:
        raise UserError(NEEDS)


def meaning(error: Any, client: object) -> FlumengError:
    """Convert an error of librdkafka into one of flumeng; the text names ``client``."""
    text = f"{client}: {error.str()}"
    if error.code() in PERSONS:
        return UserError(text)
    return CorruptError(text) if error.code() in DAMAGED else UnavailableError(text)
