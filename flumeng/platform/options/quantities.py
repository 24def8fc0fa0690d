"""Parses numbers with units, and checks texts. A ``ValueError`` states the expected form."""

from __future__ import annotations

import ipaddress
import re

WHOLE_NUMBER = "expected a whole number"
SIZE = 'expected a size, like "64 KiB" or "1 MiB"'
AMOUNT = "expected a number, like 1 or 0.5"
RATIO = "expected a number from 0 to 1, like 0.1"
DURATION = 'expected a duration, like "250 ms", "10 s" or "5 min"'

_SIZES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_DURATIONS = {
    "": 1.0, "us": 1e-6, "ms": 1e-3,
    "s": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?:\.(?!-)[A-Za-z0-9-]{1,63})*", re.ASCII)
MOST_DIGITS = 300
LINK_RATES = (65_536, 2**40)
"""Bounds of the rate of a link in bytes per second: a large event has to pass within seconds."""
MOST = 1e300
_WHOLE = re.compile(r"[+-]?[0-9][0-9_]*", re.ASCII)


def whole_number(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(WHOLE_NUMBER)
    return int(text.replace("_", ""))


def size(text: str) -> int:
    """Return the bytes of ``1 MiB``, ``64KB`` or a bare number of bytes."""
    value = _quantity(text, _SIZES, SIZE)
    if value != int(value):
        raise ValueError("expected a whole number of bytes")
    return int(value)


def amount(text: str) -> float:
    return float(_quantity(text, {"": 1.0}, AMOUNT))


def ratio(text: str) -> float:
    value = float(_quantity(text, {"": 1.0}, RATIO))
    if value > 1:
        raise ValueError(RATIO)
    return value


def duration(text: str) -> float:
    """Return the seconds of ``250 ms``, ``2 min`` or a bare number of seconds."""
    return _quantity(text, _DURATIONS, DURATION)


def _quantity(text: str, units: dict[str, float] | dict[str, int], expected: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(expected)
    digits = match[1].replace("_", "")
    value = (float(digits) if "." in digits else int(digits[:MOST_DIGITS])) * factor
    if len(digits) > MOST_DIGITS or not value < MOST:
        raise ValueError(f"{expected}; the value is too large")
    return value


def check_address(text: str) -> None:
    """Check ``host:port``: port 0 to 65535 (0 takes a free one), IPv6 hosts in brackets."""
    expected = 'expected host:port, like "0.0.0.0:5514" or "[::]:5514"'
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port, re.ASCII):
        raise ValueError(expected)
    if int(port) > 65535:
        raise ValueError("expected a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise ValueError(f"expected an IPv6 address in the brackets of {host}") from None
    elif re.fullmatch("[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError(f"expected an IPv4 address before the port, not {host}") from None
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError(expected)


def check_absolute(text: str) -> None:
    if not text.startswith("/"):
        raise ValueError('expected an absolute path, like "/var/log/app/*.log"')
