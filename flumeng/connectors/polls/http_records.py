"""Records of an HTTP reply, selection of new ones, and the link to the next page."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from email.message import Message
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.objects.formats import Segment
from flumeng.connectors.objects.json_elements import elements
from flumeng.connectors.objects.lines import MOST_LINE_BYTES, cut
from flumeng.connectors.polls import json_paths
from flumeng.connectors.polls.http_options import Format, TrackedType, TrackField
from flumeng.platform.errors import CorruptError, UserError
from flumeng.platform.scrubbing import excerpt

MOST_RECORDS = 4_000_000
HASH_BYTES = 8
MOST_SEEN = 2_000
"""Maximum number of hashes; above it, records with the same tracked value may repeat."""
MOST_VALUE_BYTES = 1024
NO_RECORDS = pa.nulls(0, pa.binary())
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_NO_TEXTS = frozenset({"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined"})
"""Python encodings that are not charsets."""
_HALF = rb"u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = rb"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rb"\\(?:(?P<pair>" + _PAIR + rb")|(?P<half>" + _HALF + rb")|.)", re.DOTALL)
_LINK = re.compile(r'<([^<>]*)>((?:\s*;\s*[\w*!.-]+\s*(?:=\s*(?:"[^"]*"|[^\s;,"]*))?)*)')
_REL = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,"]*))', re.IGNORECASE)
_FRACTION = re.compile(r"[.,]([0-9]{1,100})")


def text_of(body: bytes, content_type: str) -> bytes:
    """Return ``body`` as UTF-8 without a byte order mark; invalid bytes of other charsets become
    U+FFFD. Raises UserError for an unknown charset."""
    try:
        message = Message()
        message["Content-Type"] = content_type.replace("\r", " ").replace("\n", " ")
        charset = message.get_content_charset("utf-8") or "utf-8"
        name = codecs.lookup(charset).name.replace("_", "-")
        if name in _NO_TEXTS:
            raise LookupError(charset)
        if name not in ("utf-8", "ascii"):
            body = body.decode(charset, "replace").encode("utf-8", "replace")
    except (LookupError, ValueError, TypeError) as error:
        raise UserError(f"unknown charset in Content-Type: {content_type[:80]!r}") from error
    return body.removeprefix(codecs.BOM_UTF8)


def json_of(text: bytes) -> bytes:
    """Return JSON text with U+FFFD for escaped lone surrogates. Raises UserError for other text."""
    try:
        try:
            _check_json(text)
        except json_paths.NOT_JSON:
            text = _ESCAPE.sub(lambda match: rb"\ufffd" if match["half"] else match[0], text)
            _check_json(text)
    except json_paths.NOT_JSON as error:
        beginning = excerpt(" ".join(text[:400].decode("utf-8", "replace").split()), 100)
        raise UserError(f"the answer is not JSON ({error}), it begins: {beginning}") from error
    return text


def records_of(text: bytes, form: Format, path: Sequence[json_paths.Step]) -> pa.BinaryArray:
    """Return one body per record. ``text`` is JSON when ``form`` is ``json``. Raises UserError for
    a wrong ``path``, and for too many or too large records."""
    if not text.strip(json_paths.BLANK):
        return NO_RECORDS
    if form == "json":
        return _elements(list(json_paths.values_at(text, path)))
    if form == "text":
        return _checked(pa.array([text], pa.binary()))
    if text.count(b"\n") > MOST_RECORDS:
        raise UserError(f"an answer has more than {MOST_RECORDS} lines: ask for less at once")
    return _checked(cut([Segment(0, len(text), text)], keep_empty=form == "lines").bodies)


def next_link(header: str) -> str | None:
    """Return the target of ``rel="next"`` in a ``Link`` header (RFC 8288); None without one."""
    for link in _LINK.finditer(header[: 64 * 1024]):
        rel = _REL.search(link[2])
        if rel is not None and "next" in (rel[1] or rel[2] or "").lower().split():
            return link[1]
    return None


def _elements(values: list[bytes]) -> pa.BinaryArray:
    """Return the elements of arrays, and objects; null is skipped."""
    kept = [value for value in values if value.strip(json_paths.BLANK) != b"null"]
    if any(value.lstrip(json_paths.BLANK)[:1] not in (b"[", b"{") for value in kept):
        raise UserError("the path `records` leads neither to an array nor to an object")
    try:
        arrays = list(elements(iter([b"\n".join(kept)])))
    except CorruptError as error:
        raise UserError(f"a record of the answer cannot be read: {error}") from error
    if sum(map(len, arrays)) > MOST_RECORDS:
        raise UserError(f"an answer has more than {MOST_RECORDS} records: ask for less at once")
    return _checked(pa.concat_arrays(arrays)) if arrays else NO_RECORDS


def _checked(bodies: pa.BinaryArray) -> pa.BinaryArray:
    """Return ``bodies``. Raises UserError when one is too large for an event."""
    if (pc.max(pc.binary_length(bodies)).as_py() or 0) > MOST_LINE_BYTES:
        raise UserError(f"an event of the answer is larger than {MOST_LINE_BYTES // 2**20} MiB")
    return bodies


@dataclass(frozen=True)
class Tracked:
    """Progress of a tracked value. ``last``: the greatest value so far, verbatim, or "". ``seen``:
    joined hashes of the records with that value."""

    last: str = ""
    seen: bytes = b""

    @property
    def hashes(self) -> set[bytes]:
        starts = range(0, len(self.seen), HASH_BYTES)
        return {self.seen[at : at + HASH_BYTES] for at in starts}


class Tracker:
    """Drops records below the greatest tracked value so far, and known records with that value;
    records without a value pass. All pages of a due time compare with the value before the first:
    records come in any order."""

    def __init__(self, track: TrackField) -> None:
        self._key = _KEYS[track.type]
        self._type = track.type
        self._name = track.path
        self._path = json_paths.parse(track.path)

    def pass_on(
        self, bodies: pa.BinaryArray, began: Tracked, reached: Tracked
    ) -> tuple[pa.BinaryArray, Tracked]:
        """Return the records that are new since ``began``, and ``reached`` advanced by all records.
        Raises UserError when no record has the value, or for a value of another type."""
        first = self._parsed(began.last) if began.last else None
        best = self._parsed(reached.last) if reached.last else None
        before, seen, kept, without = began.hashes, reached.hashes, [], 0
        for number, body in enumerate(bodies.to_pylist()):
            text = self._text(body)
            if text is None:
                kept.append(number)
                without += 1
                continue
            key = self._parsed(text)
            digest = blake2b(body, digest_size=HASH_BYTES).digest()
            if first is None or key > first or (key == first and digest not in before):
                kept.append(number)
            if best is None or key > best:
                best, seen = key, {digest}
                reached = replace(reached, last=text)
            elif key == best and len(seen) < MOST_SEEN:
                seen.add(digest)
        if without and without == len(bodies):
            raise UserError(f"no record has the tracked value {self._name}")
        reached = replace(reached, seen=b"".join(sorted(seen)))
        whole = len(kept) == len(bodies)
        return bodies if whole else bodies.take(pa.array(kept, pa.int64())), reached

    def _text(self, body: bytes) -> str | None:
        value = json_paths.value_at(body, self._path)
        if value is None:
            return None
        text = json_paths.scalar(value)
        if not text or len(text.encode("utf-8", "replace")) > MOST_VALUE_BYTES:
            raise UserError(
                f"the tracked {self._name} is neither a text nor a number of at most "
                f"{MOST_VALUE_BYTES} bytes: {excerpt(value[:200].decode('utf-8', 'replace'), 40)}"
            )
        return text

    def _parsed(self, text: str) -> Any:
        try:
            return self._key(text)
        except (ValueError, ArithmeticError) as error:
            raise UserError(
                f"the tracked {self._name} is not a {self._type}: {excerpt(text, 40)}"
            ) from error


def _time(text: str) -> tuple[int, Decimal]:
    """Return the seconds since 1970 and their fraction, with any number of digits."""
    fraction = _FRACTION.search(text)
    moment = datetime.fromisoformat(_FRACTION.sub("", text, count=1))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()), Decimal(f"0.{fraction[1]}") if fraction else Decimal(0)


def _number(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise InvalidOperation
    return number


_KEYS: Mapping[TrackedType, Callable[[str], Any]] = {"time": _time, "number": _number, "text": str}
