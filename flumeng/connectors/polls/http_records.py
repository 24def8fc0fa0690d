"""The records in an answer over HTTP, and what follows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.objects.json_elements import elements
from flumeng.connectors.objects.lines import MOST_LINE_BYTES, cut
from flumeng.connectors.objects.parts import Segment
from flumeng.connectors.polls.http_options import Format
from flumeng.connectors.polls.json_paths import Step
from flumeng.platform.errors import CorruptError, UserError
from flumeng.platform.scrubbing import excerpt

MOST_RECORDS = 4_000_000
_whole = msgspec.json.Decoder(msgspec.Raw).decode
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_value = msgspec.json.Decoder().decode
_NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
_BLANK = b" \t\n\r"
_HALF = rb"u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = rb"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rb"\\(?:(?P<pair>" + _PAIR + rb")|(?P<half>" + _HALF + rb")|.)", re.DOTALL)
_LINK = re.compile(r'<([^<>]*)>((?:\s*;\s*[\w*!.-]+\s*(?:=\s*(?:"[^"]*"|[^\s;,"]*))?)*)')
_REL = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,"]*))', re.IGNORECASE)
_NONE = pa.array([], pa.binary())


def json_of(text: bytes) -> bytes:
    """``text``, which is JSON; half of a surrogate pair in it is U+FFFD. Raises UserError."""
    for attempt in (text, None):
        try:
            whole = _without_halves(text) if attempt is None else attempt
            _whole(whole)
            return whole
        except _NOT_JSON as error:
            problem = error
    said = excerpt(" ".join(text[:400].decode("utf-8", "replace").split()), 100)
    raise UserError(f"the answer is not JSON ({problem}), it begins: {said}") from problem


def records_of(text: bytes, form: Format, path: Sequence[Step]) -> pa.BinaryArray:
    """One body for each. ``text`` is JSON where ``form`` is. Raises UserError."""
    if not text.strip(_BLANK):
        return _NONE
    if form == "json":
        return _elements(list(found(text, path)))
    if form == "text":
        _require_event(len(text))
        return pa.array([text], pa.binary())
    if text.count(b"\n") > MOST_RECORDS:
        raise UserError(f"an answer has more than {MOST_RECORDS} lines: ask for less at once")
    bodies = cut([Segment(0, len(text), text)], keep_empty=form == "lines").bodies
    _require_event(pc.max(pc.binary_length(bodies)).as_py() or 0)
    return bodies


def found(text: bytes, path: Sequence[Step]) -> Iterator[bytes]:
    """What is there in JSON, as it is written. Raises UserError when nothing is, and might not be
    missing."""
    if not path:
        yield text
        return
    step, rest = path[0], path[1:]
    inner = _below(text, step)
    if inner is None:
        if step.optional or (step.key is not None and text.strip(_BLANK) == b"null"):
            return
        raise UserError(
            f"the answer has no {step} where the path `records` has it: correct the path, or put "
            "a ? behind what may be missing"
        )
    for one in inner:
        yield from found(one, rest)


def value_at(text: bytes, path: Sequence[Step]) -> bytes | None:
    """The one value there, as it is written; None when there is none, or null."""
    for step in path:
        try:
            inner = _below(text, step)
        except _NOT_JSON:
            return None
        if not inner:
            return None
        text = inner[0]
    text = text.strip(_BLANK)
    return None if text == b"null" else text


def scalar(text: bytes) -> str | None:
    """The content of a text, the writing of a number; None of anything else."""
    if text[:1] == b'"':
        try:
            content = _value(text)
        except _NOT_JSON:
            return None
        return content if isinstance(content, str) else None
    return text.decode() if text[:1] in b"-0123456789" and text else None


def next_link(header: str) -> str | None:
    """The target of ``rel="next"`` in a header ``Link``."""
    for link in _LINK.finditer(header[: 64 * 1024]):
        rel = _REL.search(link[2])
        if rel is not None and "next" in (rel[1] or rel[2] or "").lower().split():
            return link[1]
    return None


def _below(text: bytes, step: Step) -> list[bytes] | None:
    """What the step leads to, which is any number of values only of ``[*]``; None when it is not
    there."""
    text = text.strip(_BLANK)
    try:
        if isinstance(step.key, str):
            named = _object(text) if text[:1] == b"{" else {}
            return [bytes(named[step.key])] if step.key in named else None
        listed = _array(text) if text[:1] == b"[" else None
    except _NOT_JSON:
        return None
    if listed is None:
        return None
    if step.key is None:
        return [bytes(one) for one in listed]
    return [bytes(listed[step.key])] if -len(listed) <= step.key < len(listed) else None


def _elements(slices: list[bytes]) -> pa.BinaryArray:
    """Arrays give their elements, objects themselves, null nothing."""
    kept = [one for one in slices if one.strip(_BLANK) != b"null"]
    if any(one.lstrip(_BLANK)[:1] not in (b"[", b"{") for one in kept):
        raise UserError("the path `records` leads to what is neither an array nor an object")
    try:
        arrays = list(elements(iter([b"\n".join(kept)])))
    except CorruptError as error:
        raise UserError(f"a record of the answer cannot be read: {error}") from error
    if sum(map(len, arrays)) > MOST_RECORDS:
        raise UserError(f"an answer has more than {MOST_RECORDS} records: ask for less at once")
    for array in arrays:
        _require_event(pc.max(pc.binary_length(array)).as_py() or 0)
    return pa.concat_arrays(arrays) if arrays else _NONE


def _require_event(size: int) -> None:
    if size > MOST_LINE_BYTES:
        raise UserError(f"an event of the answer is larger than {MOST_LINE_BYTES // 2**20} MiB")


def _without_halves(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape["half"] else escape[0], text)
