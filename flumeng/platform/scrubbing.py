"""Removes secrets from all texts that leave a process: logs, statuses, errors of executors. Covers
all secrets that the process had, long lines of them, forms in URLs, JSON, HTML, base64."""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import traceback
from collections.abc import Iterator
from typing import TypeVar
from urllib.parse import quote, quote_plus

from flumeng.platform.errors import FlumengError

T = TypeVar("T")

SHOWN = "***"
LINE_CHARACTERS = 8
"""Minimum length of a secret's line: shorter lines occur in unrelated texts."""
BASE64_BYTES = 6
_patterns: dict[str, re.Pattern[str]] = {}


class Secret(str):
    """A text hidden by ``repr``; removed by ``scrub`` in processes that create or unpickle it."""

    __slots__ = ()

    def __new__(cls, text: str) -> Secret:
        secret = super().__new__(cls, text)
        if text and text not in _patterns:
            forms = sorted(set(_forms(text)), key=len, reverse=True)
            _patterns[text] = re.compile("|".join(map(re.escape, forms)))
        return secret

    def __repr__(self) -> str:
        return SHOWN

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (str(self),)


class Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return scrub(super().format(record))


def scrub(text: str) -> str:
    """Remove all secrets of this process. Scrub before cutting: half a secret is not recognised."""
    for pattern in list(_patterns.values()):
        text = pattern.sub(SHOWN, text)
    return text


def excerpt(text: str, characters: int) -> str:
    """Return the beginning of a server's ``text``, without secrets or parts of them."""
    return scrub(text)[:characters]


def raising_no_secrets(items: Iterator[T]) -> Iterator[T]:
    """Yield the ``items``. An error that shows a secret, itself or in a cause, is replaced by a
    ``FlumengError`` without secrets and causes. Log lines of libraries are scrubbed."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Formatter())
    try:
        yield from items
    except Exception as error:
        report = "".join(traceback.format_exception(error, limit=0))
        if scrub(report) == report:
            raise
        raise _scrubbed(error) from None


def _scrubbed(error: Exception) -> Exception:
    if isinstance(error, FlumengError) and all(isinstance(arg, str) for arg in error.args):
        return type(error)(*map(scrub, error.args))
    return FlumengError(scrub(f"{type(error).__name__}: {error}"))


def _forms(secret: str) -> Iterator[str]:
    lines = [line.strip() for line in secret.splitlines()]
    for text in (secret, *(line for line in lines if len(line) >= LINE_CHARACTERS)):
        yield text
        yield quote(text, safe="")
        yield quote_plus(text)
        yield html.escape(text)
        yield repr(text)[1:-1]
        for to_ascii in (True, False):
            yield json.dumps(text, ensure_ascii=to_ascii)[1:-1]
        yield from _in_base64(text.encode("utf-8", "surrogateescape"))


def _in_base64(content: bytes) -> Iterator[str]:
    """Yield the common part of the base64 of all texts with ``content``, for three offsets."""
    if len(content) < BASE64_BYTES:
        return
    for before, first in enumerate((0, 2, 3)):
        padded = bytes(before) + content
        last = len(padded) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(padded).decode()[first:last]


CONNECTION = re.compile(r"^<?\w+\(host=[^)]*\)(?: at 0x[0-9a-f]+>)?: ")


def without_connection(error: Exception) -> str:
    """Return the text of an error of urllib3 without the connection object that it names first."""
    text = error.args[-1] if len(error.args) > 1 else error
    return CONNECTION.sub("", str(text))
