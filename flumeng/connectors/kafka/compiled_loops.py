"""Compiled loops over librdkafka's messages, which create no Python object per message. Compilation
takes half a second at import, so only message readers import this module."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from confluent_kafka import cimpl
from llvmlite.binding import add_symbol
from numba import njit, types

F = TypeVar("F", bound=Callable[..., None])
Numbers = np.ndarray[Any, np.dtype[Any]]

library = ctypes.CDLL(cimpl.__file__)
"""librdkafka, loaded from confluent-kafka's extension module, which contains it."""
_address: Any = types.uintp
_number: Any = types.int32
_nothing: Any = types.void


def _of_library(name: str, result: Any, *arguments: Any) -> Any:
    add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    return types.ExternalFunction(name, result(*arguments))


_copy: Any = types.ExternalFunction("memcpy", _address(_address, _address, _address))
_length: Any = types.ExternalFunction("strlen", _address(_address))
_destroy = _of_library("rd_kafka_message_destroy", _nothing, _address)
_timestamp = _of_library("rd_kafka_message_timestamp", types.int64, _address, _address)
_headers = _of_library("rd_kafka_message_headers", _number, _address, _address)
_header = _of_library(
    "rd_kafka_header_get_all", _number, _address, _address, _address, _address, _address
)
_header_count = _of_library("rd_kafka_header_cnt", _address, _address)


def _compiled(signature: str | None = None) -> Callable[[F], F]:
    return cast("Callable[[F], F]", njit(signature, nogil=True))


@_compiled("void(uintp[::1], int64[::1], uint8[::1])")
def gather(addresses: Numbers, ends: Numbers, into: Numbers) -> None:
    """Copy values from ``addresses`` one after another; value i ends at ``ends[i]`` of ``into``."""
    start = 0
    for number in range(len(addresses)):
        if ends[number] > start:
            _copy(into.ctypes.data + start, addresses[number], ends[number] - start)
        start = ends[number]


@_compiled("void(uintp[::1], int64[::1], int32[::1], uintp[::1])")
def examine(messages: Numbers, times: Numbers, kinds: Numbers, headers: Numbers) -> None:
    """Write each message's time, timestamp type and header handle (0 without headers)."""
    for number in range(len(messages)):
        times[number] = _timestamp(messages[number], kinds.ctypes.data + 4 * number)
        if _headers(messages[number], headers.ctypes.data + 8 * number) != 0:
            headers[number] = 0


@_compiled("void(uintp[::1])")
def destroy(messages: Numbers) -> None:
    for message in messages:
        _destroy(message)


@_compiled()
def count_headers(headers: Numbers, counts: Numbers) -> None:
    for number in range(len(headers)):
        counts[number] = _header_count(headers[number]) if headers[number] else 0


@_compiled()
def list_headers(headers: Numbers, counts: Numbers, names: Numbers, values: Numbers) -> None:
    """Write address and length of each header's name and value into ``names`` and ``values``."""
    at = 0
    for number in range(len(headers)):
        for which in range(counts[number]):
            value = values.ctypes.data + 16 * at
            _header(headers[number], which, names.ctypes.data + 16 * at, value, value + 8)
            names[at, 1] = _length(names[at, 0])
            at += 1
