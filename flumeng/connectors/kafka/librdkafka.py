"""Adapter to librdkafka's public C API: takes thousands of messages at a time, since an object per
message (confluent-kafka) costs as much as fetching. Settings and errors are confluent-kafka's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from typing import Any, cast

import numpy as np

from flumeng.connectors.kafka.compiled_loops import Numbers, destroy, examine, gather, library
from flumeng.connectors.kafka.errors import KafkaError, KafkaException

TEXT_BYTES = 512
CONSUMER = 1


class _Message(ctypes.Structure):
    """The C structure ``rd_kafka_message_t``. With a ``code`` it is an error with text ``body``."""

    _fields_ = (
        ("code", c_int),
        ("topic", c_size_t),
        ("partition", c_int32),
        ("body", c_size_t),
        ("body_bytes", c_size_t),
        ("key", c_size_t),
        ("key_bytes", c_size_t),
        ("offset", c_int64),
        ("own", c_size_t),
    )


MESSAGE = np.dtype(_Message)
_OnError = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)


def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(library, f"rd_kafka_{name}")
    function.restype, function.argtypes = result, arguments
    return cast("Callable[..., Any]", function)


_text = (c_char_p, c_size_t)
_conf_new = _function("conf_new", c_void_p)
_conf_set = _function("conf_set", c_int, c_void_p, c_char_p, c_char_p, *_text)
_conf_destroy = _function("conf_destroy", None, c_void_p)
_conf_set_error_cb = _function("conf_set_error_cb", None, c_void_p, _OnError)
_conf_set_log_cb = _function("conf_set_log_cb", None, c_void_p, c_void_p)
_new = _function("new", c_void_p, c_int, c_void_p, *_text)
_poll_set_consumer = _function("poll_set_consumer", c_int, c_void_p)
_queue_get_consumer = _function("queue_get_consumer", c_void_p, c_void_p)
_queue_destroy = _function("queue_destroy", None, c_void_p)
_consumer_close = _function("consumer_close", c_int, c_void_p)
_destroy = _function("destroy", None, c_void_p)
_list_new = _function("topic_partition_list_new", c_void_p, c_int)
_list_add = _function("topic_partition_list_add", c_void_p, c_void_p, c_char_p, c_int32)
_list_set_offset = _function(
    "topic_partition_list_set_offset", c_int, c_void_p, c_char_p, c_int32, c_int64
)
_list_destroy = _function("topic_partition_list_destroy", None, c_void_p)
_assign = _function("assign", c_int, c_void_p, c_void_p)
_consume = _function("consume_batch_queue", c_ssize_t, c_void_p, c_int, POINTER(c_void_p), c_size_t)


class MessageBatch:
    """Messages and errors, as an array ``records`` of MESSAGE. Leaving the context frees them."""

    def __init__(self, messages: Numbers) -> None:
        self._messages = messages
        self.records = np.empty(len(messages), MESSAGE)
        ends = np.arange(1, len(messages) + 1) * MESSAGE.itemsize
        gather(messages, ends, self.records.view(np.uint8))

    def of(self, field: str, chosen: Numbers) -> Numbers:
        """Return a field of the chosen messages. Indexing whole records would be slower."""
        return self.records[field][chosen]

    def error(self, number: int) -> Any:
        record = self.records[number]
        size = int(record["body_bytes"]) if record["body"] else 0
        text = ctypes.string_at(int(record["body"]), size) if size else b""
        return KafkaError(int(record["code"]), text.decode(errors="replace"))

    def examined(self, chosen: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return times in ms, their types, and header handles (0: none). Not for error records."""
        columns = (
            np.empty(len(chosen), np.int64),
            np.empty(len(chosen), np.int32),
            np.empty(len(chosen), np.uintp),
        )
        examine(self._messages[chosen], *columns)
        return columns

    def __enter__(self) -> MessageBatch:
        return self

    def __exit__(self, *_error: object) -> None:
        destroy(self._messages)


class Client:
    """A consumer, for one thread at a time. ``on_error`` gets connection errors during ``take``.
    The constructor raises KafkaException for invalid settings."""

    def __init__(self, settings: Mapping[str, Any], on_error: Callable[[Any], None]) -> None:
        self._on_error = _OnError(
            lambda _client, code, text, _: on_error(KafkaError(code, _decoded(text)))
        )
        why = ctypes.create_string_buffer(TEXT_BYTES)
        conf = _conf_new()
        _conf_set_error_cb(conf, self._on_error)
        _conf_set_log_cb(conf, None)
        for name, value in settings.items():
            if name != "logger":
                text = str(value).lower() if isinstance(value, bool) else str(value)
                if _conf_set(conf, name.encode(), text.encode(), why, TEXT_BYTES) != 0:
                    _conf_destroy(conf)
                    raise KafkaException(KafkaError(KafkaError._INVALID_ARG, _decoded(why.value)))
        self._client = _new(CONSUMER, conf, why, TEXT_BYTES)
        if not self._client:
            _conf_destroy(conf)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, _decoded(why.value)))
        _poll_set_consumer(self._client)
        self._queue = _queue_get_consumer(self._client)

    def assign(self, topic: str, number: int, start: int) -> None:
        """Read only this partition, from offset ``start`` on."""
        partitions = _list_new(1)
        _list_add(partitions, topic.encode(), number)
        _list_set_offset(partitions, topic.encode(), number, start)
        code = _assign(self._client, partitions)
        _list_destroy(partitions)
        if code != 0:
            raise KafkaException(KafkaError(code))

    def unassign(self) -> None:
        _assign(self._client, None)

    def take(self, count: int, wait_seconds: float) -> MessageBatch:
        """Return up to ``count`` messages that arrive within ``wait_seconds``."""
        messages = np.empty(count, np.uintp)
        into = messages.ctypes.data_as(POINTER(c_void_p))
        size = _consume(self._queue, int(wait_seconds * 1000), into, count)
        return MessageBatch(messages[: max(size, 0)])

    def close(self) -> None:
        _queue_destroy(self._queue)
        _consumer_close(self._client)
        _destroy(self._client)


def _decoded(text: bytes | None) -> str:
    return (text or b"").decode(errors="replace")
