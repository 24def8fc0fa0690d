"""How far the records of answers reach, by a value in them that grows.

A server may answer ``?since={last}`` with the records of that very value again, or give all it has
each time. So what lies below the last value is known, and of the records at it those that were
there. While an answer goes on over pages, what counts is where it began: its records may come in
any order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from flumeng.connectors.polls import json_paths
from flumeng.connectors.polls.http_options import TrackedType, TrackField
from flumeng.connectors.polls.http_records import scalar, value_at
from flumeng.platform.errors import UserError
from flumeng.platform.scrubbing import excerpt

HASH_BYTES = 8
MOST_SEEN = 2_000
"""Of more records with one value, some may come twice."""
MOST_VALUE_BYTES = 1024
_FRACTION = re.compile(r"[.,]([0-9]{1,100})")
Key = Any
"""Of one type in one source."""


@dataclass(frozen=True)
class Reach:
    """``last`` is the greatest value so far, as it came; "" when there is none. ``seen``: hashes of
    the records that have it, one behind the other."""

    last: str = ""
    seen: bytes = b""

    @property
    def hashes(self) -> set[bytes]:
        places = range(0, len(self.seen), HASH_BYTES)
        return {self.seen[at : at + HASH_BYTES] for at in places}


class Tracker:
    def __init__(self, track: TrackField) -> None:
        self._type: TrackedType = track.type
        self._name = track.path
        self._path = json_paths.parse(track.path)

    def pass_on(
        self, bodies: pa.BinaryArray, began: Reach, reached: Reach
    ) -> tuple[pa.BinaryArray, Reach]:
        """The records that are new to who had ``began``, and how far all of them reach with those
        of ``reached``.

        Raises UserError when none of the records has the value, or one has what is no such value.
        """
        first = self._key(began.last) if began.last else None
        best = self._key(reached.last) if reached.last else None
        known, seen, kept, without = began.hashes, reached.hashes, [], 0
        for number, body in enumerate(_each(bodies)):
            text = self._text(body)
            if text is None:
                kept.append(number)
                without += 1
                continue
            key = self._key(text)
            digest = blake2b(body, digest_size=HASH_BYTES).digest()
            if first is None or key > first or (key == first and digest not in known):
                kept.append(number)
            if best is None or key > best:
                best, seen = key, {digest}
                reached = replace(reached, last=text)
            elif key == best and len(seen) < MOST_SEEN:
                seen.add(digest)
        if without and without == len(bodies):
            raise UserError(f"no record has {self._name}, which is to be tracked")
        reached = replace(reached, seen=b"".join(sorted(seen)))
        whole = len(kept) == len(bodies)
        return bodies if whole else bodies.take(pa.array(kept, pa.int64())), reached

    def _text(self, body: bytes) -> str | None:
        value = value_at(body, self._path)
        if value is None:
            return None
        text = scalar(value)
        if text is None or not text or len(text.encode("utf-8", "replace")) > MOST_VALUE_BYTES:
            raise UserError(
                f"{self._name} is to be tracked, and is neither a text nor a number of at most "
                f"{MOST_VALUE_BYTES} bytes: {excerpt(value[:200].decode('utf-8', 'replace'), 40)}"
            )
        return text

    def _key(self, text: str) -> Key:
        try:
            return _KEYS[self._type](text)
        except (ValueError, ArithmeticError) as error:
            raise UserError(
                f"{self._name} is to be tracked as a {self._type}, and is none: {excerpt(text, 40)}"
            ) from error


def _time(text: str) -> tuple[int, Decimal]:
    """Seconds and their fraction, of any number of digits."""
    fraction = _FRACTION.search(text)
    moment = datetime.fromisoformat(_FRACTION.sub("", text, count=1))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()), Decimal(f"0.{fraction[1]}") if fraction else Decimal(0)


def _number(text: str) -> Decimal:
    found = Decimal(text)
    if not found.is_finite():
        raise InvalidOperation
    return found


_KEYS: Mapping[TrackedType, Callable[[str], Key]] = {"time": _time, "number": _number, "text": str}


def _each(bodies: pa.BinaryArray) -> Sequence[bytes]:
    found: list[bytes] = bodies.to_pylist()
    return found
