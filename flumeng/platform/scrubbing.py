"""Secrets in memory, and how they stay out of whatever leaves a process.

A process remembers each secret that it has had, and ``scrub`` takes it out of texts: of log lines,
of what a task says of itself, and of errors where an executor raises them, so that neither Spark's
log nor the driver sees one that a server has quoted. A secret is found as a whole, in each line of
a longer one, and as URLs, JSON, HTML and base64 write it.
"""

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
"""Shorter lines of a secret of several lines are in many texts that have nothing to do with it."""
BASE64_BYTES = 6
_known: dict[str, re.Pattern[str]] = {}


class Secret(str):
    """The text of a secret. Its ``repr`` does not show it, so neither does that of an object that
    has it; and whichever process makes or unpickles one scrubs it from then on."""

    __slots__ = ()

    def __new__(cls, text: str) -> Secret:
        secret = super().__new__(cls, text)
        if text and text not in _known:
            forms = sorted(set(_forms(text)), key=len, reverse=True)
            _known[text] = re.compile("|".join(map(re.escape, forms)))
        return secret

    def __repr__(self) -> str:
        return SHOWN

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (str(self),)


class Formatter(logging.Formatter):
    """Lines of a log, with their traces, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return scrub(super().format(record))


def scrub(text: str) -> str:
    """``text`` without any secret that this process has had. Whoever cuts a text scrubs it first:
    the rest of a secret that was cut is not known as one."""
    for pattern in list(_known.values()):
        text = pattern.sub(SHOWN, text)
    return text


def excerpt(text: str, characters: int) -> str:
    """The beginning of ``text``, as a server has said it, without secrets or parts of one."""
    return scrub(text)[:characters]


def raising_no_secrets(items: Iterator[T]) -> Iterator[T]:
    """The same ``items``; an error that tells a secret, or whose causes do, tells it no more.

    Nor do log lines of libraries in a process that has set up no log of its own.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Formatter())
    try:
        yield from items
    except Exception as error:
        told = "".join(traceback.format_exception(error, limit=0))
        if scrub(told) == told:
            raise
        raise _scrubbed(error) from None


def _scrubbed(error: Exception) -> Exception:
    """Of the same kind when it is one of ours, which others tell apart."""
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
    """What the base64 of any text with ``content`` in it has in common, by the three positions at
    which it may begin."""
    if len(content) < BASE64_BYTES:
        return
    for before, first in enumerate((0, 2, 3)):
        padded = bytes(before) + content
        last = len(padded) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(padded).decode()[first:last]
