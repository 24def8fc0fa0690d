"""The adapter's errors, and what they mean: librdkafka's codes as those of flumeng's error tree."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError

NEEDS = "the source kafka needs a package: pip install 'flumeng[kafka]'"
try:
    from confluent_kafka import KafkaError, KafkaException
except ImportError as missing:
    raise UserError(NEEDS) from missing
if find_spec("numba") is None:  # it is imported only where messages are read
    raise UserError(NEEDS)

__all__ = ["GROUP", "PASSING", "KafkaError", "KafkaException", "meaning"]

NO_TOPIC = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.TOPIC_EXCEPTION,
)
PERSONS = (
    *NO_TOPIC,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
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
GROUP = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""About consumer groups, of which nothing here makes use."""


def meaning(error: Any, who: object) -> FlumengError:
    """What an error of librdkafka's client of ``who`` means."""
    text = f"{who}: {error.str()}"
    if error.code() in PERSONS:
        return UserError(text)
    return CorruptError(text) if error.code() in DAMAGED else UnavailableError(text)
