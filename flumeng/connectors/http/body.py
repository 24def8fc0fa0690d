"""Decompresses, checks and cuts HTTP bodies into pieces of whole events. Pure. Memory is reserved
in the shared bound before allocation. No loop over single lines: the commit thread finds newlines,
and JSON is checked piece by piece."""

from __future__ import annotations

import io
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flumeng.connectors.api.framing import Framer, Messages
from flumeng.journal.log.frame import MAX_ROWS
from flumeng.platform.json_surrogates import without_surrogates
from flumeng.platform.memory import require_memory

PIECE_BYTES = 1 << 20
ENTRIES_AT_ONCE = 10_000
MOST_ENTRIES = 100_000
"""Most entries of an array: each needs much more memory than its bytes."""

_VALUE_BYTES = 80
"""Memory that a decoded value needs besides its text."""

_NEWLINE, _QUOTE, _COMMA, _OPEN, _CLOSE = b'\n",{}'
_BRACKET_TO_BRACE = 0x20
_SCAN_BYTES = 1 << 18
_READ_BYTES = 1 << 18
_CODECS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}
_LINES_OF_JSON = frozenset(
    f"application/{name}"
    for name in (
        "x-ndjson",
        "ndjson",
        "jsonl",
        "x-jsonl",
        "jsonlines",
        "x-jsonlines",
        "json-lines",
        "x-json-stream",
        "stream+json",
        "vnd.serilog.clef",
    )
)
_JSON = frozenset({"application/json", "application/x-json", "text/json", "text/x-json"})
_SEQUENCE = "application/json-seq"
_LOGPLEX = "application/logplex-1"
_PROTOBUF = frozenset(
    {
        "application/x-protobuf",
        "application/protobuf",
        "application/vnd.google.protobuf",
        "application/grpc",
        "application/grpc+proto",
    }
)
_PACKED = frozenset({"application/gzip", "application/x-gzip", "application/zstd"})
_BINARY = frozenset(
    f"application/{name}"
    for name in (
        "octet-stream",
        "msgpack",
        "x-msgpack",
        "vnd.msgpack",
        "cbor",
        "bson",
        "avro",
        "x-thrift",
        "zip",
        "pdf",
        "vnd.apache.parquet",
        "vnd.apache.arrow.stream",
    )
)
_BINARY_FAMILIES = ("multipart/", "image/", "audio/", "video/", "font/")
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_SEPARATOR = b"\x1e"

_decode_lines = msgspec.json.Decoder(msgspec.Raw).decode_lines
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class OverBoundError(Exception):
    """The shared memory is exhausted for now."""


class MemoryBound:
    """Limits the memory of all requests together. A request may exceed the limit while no other
    request holds memory. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self.lock = threading.Lock()

    @contextmanager
    def share(self) -> Iterator[Share]:
        share = Share(self)
        try:
            yield share
        finally:
            share.end()


class Share:
    def __init__(self, bound: MemoryBound) -> None:
        self.held_bytes = 0
        self._bound = bound
        self._ended = False

    def take(self, nbytes: int) -> None:
        """Reserve memory before allocation. Raises OverBoundError, and then reserves nothing."""
        bound = self._bound
        with bound.lock:
            held = bound.held_bytes + nbytes
            if self._ended:
                raise OverBoundError("the request has ended")
            if held > bound.most_bytes and bound.held_bytes > self.held_bytes:
                raise OverBoundError(f"{held} of at most {bound.most_bytes} bytes are in use")
            bound.held_bytes = held
            self.held_bytes += nbytes

    def end(self) -> None:
        """Give all back. A thread that still parses the body takes nothing more."""
        self._ended = True
        self.give_back_to(0)

    def give_back_to(self, nbytes: int) -> None:
        with self._bound.lock:
            self._bound.held_bytes -= max(0, self.held_bytes - nbytes)
            self.held_bytes = min(self.held_bytes, nbytes)


class RefusedError(Exception):
    """A request is refused, with a status, a sentence for the sender, and headers."""

    def __init__(
        self, status: int, reason: str, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = tuple(headers)


def pieces(
    body: bytes, encoding: str, content_type: str, most_bytes: int, memory: Share
) -> list[Messages]:
    """Decompress a body and return its events; ``memory`` already includes the body. Raises
    RefusedError, OverBoundError."""
    data = unpack(body, encoding, most_bytes, memory)
    memory.take(_parse_bytes(data, content_type))
    return list(messages(data, content_type))


def require_text(content_type: str) -> None:
    """Raise RefusedError for a binary content type."""
    kind = kind_of(content_type)
    if kind in _PROTOBUF:
        raise RefusedError(
            415,
            f"unsupported Content-Type {kind}: send lines or JSON. An OpenTelemetry exporter "
            "needs OTEL_EXPORTER_OTLP_PROTOCOL=http/json, a Collector `encoding: json`",
        )
    if kind in _PACKED:
        raise RefusedError(
            415, f"unsupported Content-Type {kind}: name the compression in Content-Encoding"
        )
    if kind in _BINARY or kind.startswith(_BINARY_FAMILIES):
        raise RefusedError(
            415,
            f"unsupported Content-Type {kind}: send lines of text (text/plain), JSON "
            "(application/json) or lines of JSON (application/x-ndjson)",
        )


def unpack(body: bytes, encoding: str, most_bytes: int, memory: Share) -> bytes:
    """Return the decompressed body. Raises RefusedError for invalid bodies, and OverBoundError."""
    if encoding in ("", "identity"):
        return body
    if encoding not in _CODECS:
        raise RefusedError(415, f"unsupported Content-Encoding {encoding}: use gzip or zstd")
    parts: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), _CODECS[encoding]) as stream:
            while True:
                memory.take(_READ_BYTES)
                part = stream.read(_READ_BYTES)
                if not part:
                    break
                size += len(part)
                if size > most_bytes:
                    raise too_large(most_bytes)
                parts.append(part)
    except OSError as error:
        require_memory(error)
        raise RefusedError(400, f"the body is not {encoding}: {error}") from error
    memory.take(size)
    data = b"".join(parts)
    parts.clear()
    memory.give_back_to(len(body) + size)
    return data


def too_large(most_bytes: int) -> RefusedError:
    return RefusedError(413, f"the body is larger than {most_bytes} bytes: send several requests")


def _parse_bytes(body: bytes, content_type: str) -> int:
    """Return an upper bound of the memory that ``messages`` needs."""
    kind = kind_of(content_type)
    if _is_json(kind):
        entries = min(max(map(body.count, (b",", b"}", b"]", _SEPARATOR))), MOST_ENTRIES) + 1
        return 3 * len(body) + _VALUE_BYTES * entries
    if kind == _LOGPLEX:
        return 3 * len(body)
    lines = min(body.count(b"\n"), MAX_ROWS) if kind in _LINES_OF_JSON else 0
    return len(body) + _VALUE_BYTES * lines


def _is_json(kind: str) -> bool:
    return kind in _JSON or kind.endswith(("+json", "+json-seq")) or kind == _SEQUENCE


def kind_of(content_type: str) -> str:
    """Return a content type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def messages(body: bytes, content_type: str) -> Iterator[Messages]:
    """Yield checked events in pieces that fit into frames, or raise RefusedError. With a JSON type
    each array entry, value of a sequence or concatenation, or single value is an event, verbatim;
    with Logplex's type, each octet-counted message. Any other body is lines; with a type of JSON
    lines each must be JSON, or the body a concatenation."""
    kind = kind_of(content_type)
    body = body.removeprefix(_BOM)
    if kind in _LINES_OF_JSON:
        yield from _pieces_of_json_lines(body)
    elif kind == _SEQUENCE or kind.endswith("+json-seq"):
        yield from _pieces_of_sequence(body)
    elif _is_json(kind):
        yield from _pieces_of_json(body)
    elif kind == _LOGPLEX:
        yield from _pieces_of_frames(body)
    else:
        yield from map(Messages, _pieces_of_lines(body))


def _pieces_of_json_lines(body: bytes) -> Iterator[Messages]:
    first_line = 1
    pieces = list(_pieces_of_lines(body))
    try:
        for piece in pieces:
            _check_lines(piece, first_line)
            first_line += piece.count(b"\n")
    except RefusedError:
        if (values := _values_in_a_row(body)) is None:
            raise
        yield from _pieces_of_values(values)
    else:
        yield from map(Messages, pieces)


def _pieces_of_sequence(body: bytes) -> Iterator[Messages]:
    """Yield the values of a JSON text sequence (RFC 7464), each after a record separator."""
    first, *texts = body.split(_SEPARATOR, MOST_ENTRIES + 1)
    if first.strip(_SPACE):
        raise RefusedError(400, "the body is no JSON text sequence: no record separator first")
    _require_few(len(texts))
    for number, text in enumerate(texts, 1):
        _check(without_surrogates(text), f"value {number}")
    yield from _pieces_of_values([text.strip(_SPACE) for text in texts])


def _pieces_of_frames(body: bytes) -> Iterator[Messages]:
    """Yield octet-counted syslog messages, as sent by Heroku's Logplex."""
    framer = Framer("octet-counted", len(body))
    frames = framer.feed(body, len(body)) if body else []
    if framer.malformed or framer.held:
        raise RefusedError(400, "the body is not octet-counted messages")
    for data, bounds, *_ in frames:
        assert bounds is not None
        pairs = zip(*bounds, strict=True)
        yield from _pieces_of_values([data[start:end].rstrip(b"\r\n") for start, end in pairs])


def _pieces_of_lines(body: bytes) -> Iterator[bytes]:
    if not body.endswith(b"\n"):
        body += b"\n"
    begin = 0
    while begin < len(body):
        end = body.rfind(b"\n", begin, begin + PIECE_BYTES) + 1
        end = end or body.index(b"\n", begin) + 1
        if body.count(b"\n", begin, end) > MAX_ROWS:
            newlines = np.flatnonzero(np.frombuffer(body, np.uint8)[begin:end] == _NEWLINE)
            end = begin + int(newlines[MAX_ROWS - 1]) + 1
        yield body if end - begin == len(body) else body[begin:end]
        begin = end


def _check_lines(piece: bytes, first_line: int) -> None:
    """Raise RefusedError for a line that is not JSON. Single lines are checked only to find it."""
    if _are_lines(piece):
        return
    piece = without_surrogates(piece)
    if _are_lines(piece):
        return
    for number, line in enumerate(io.BytesIO(piece), first_line):
        if not line.isspace():
            _check(line, f"line {number}")


def _are_lines(piece: bytes) -> bool:
    """Return whether each line is one JSON value. The decoder alone would also accept values that
    extend over several lines."""
    try:
        values = _decode_lines(piece)
        fits = len(values) == piece.count(b"\n")
        return fits and not any(b"\n" in bytes(value) for value in values)
    except (msgspec.DecodeError, RecursionError):
        return False


def _check(text: bytes, where: str) -> None:
    try:
        _decode_value(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedError(400, f"{where} is not JSON: {error}") from error


def _values(body: bytes) -> list[msgspec.Raw]:
    """Return the verbatim entries of an array, without the white space and commas between them."""
    plain = without_surrogates(body)
    values = _decode_array(plain)
    if plain is body:
        return values
    end = 0
    written = []
    for value in values:
        start = plain.index(value, end)
        end = start + len(value)
        written.append(msgspec.Raw(body[start:end]))
    return written


def _pieces_of_json(body: bytes) -> Iterator[Messages]:
    text = body.strip(_SPACE)
    is_array = text.startswith(b"[")
    if is_array and text.count(b",") >= MOST_ENTRIES:
        _require_few(_entries(text))
    try:
        values = _values(text) if is_array else [text]
        if not is_array:
            _decode_value(without_surrogates(text))
    except (msgspec.DecodeError, RecursionError) as error:
        concatenated = _values_in_a_row(text)
        if concatenated is None:
            expected = "a JSON array" if is_array else "JSON"
            raise RefusedError(400, f"the body is not {expected}: {error}") from error
        values = concatenated
    yield from _pieces_of_values(values)


def _pieces_of_values(values: Sequence[bytes | msgspec.Raw]) -> Iterator[Messages]:
    for begin in range(0, len(values), ENTRIES_AT_ONCE):
        piece = values[begin : begin + ENTRIES_AT_ONCE]
        ends = array("q", accumulate(map(len, piece)))
        yield Messages(b"".join(piece), (array("q", [0, *ends[:-1]]), ends))


def _values_in_a_row(body: bytes) -> list[bytes] | None:
    """Return the verbatim objects and arrays of a concatenation; None for any other body. Raises
    RefusedError for too many."""
    ends: list[int] = []
    for begin, part, depths, inside in _structure(body):
        closing = ((part | _BRACKET_TO_BRACE) == _CLOSE) & (depths == 0) & ~inside
        ends += (begin + 1 + np.flatnonzero(closing)).tolist()
        _require_few(len(ends))
    if not ends or body[ends[-1] :].strip(_SPACE):
        return None
    texts = [
        body[start:end].strip(_SPACE) for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    try:
        for text in texts:
            _decode_value(without_surrogates(text))
    except (msgspec.DecodeError, RecursionError):
        return None
    return texts


def _require_few(entries: int) -> None:
    if entries > MOST_ENTRIES:
        raise RefusedError(413, f"more than {MOST_ENTRIES} entries: send lines or more requests")


def _entries(array_of_json: bytes) -> int:
    """Return the number of array entries, without decoding; in damaged JSON up to the damage."""
    return 1 + sum(
        int(np.count_nonzero((part == _COMMA) & (depths == 1) & ~inside))
        for _, part, depths, inside in _structure(array_of_json)
    )


def _structure(
    text: bytes,
) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.int32], NDArray[np.bool_]]]:
    """Yield parts of JSON: offset, bytes, and for each byte the nesting depth after it, and whether
    it is inside a string."""
    plain = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
    depth, quoted = 0, False
    for begin in range(0, len(plain), _SCAN_BYTES):
        part = np.frombuffer(plain, np.uint8, min(_SCAN_BYTES, len(plain) - begin), begin)
        inside = np.logical_xor.accumulate(part == _QUOTE) ^ quoted
        braces = part | _BRACKET_TO_BRACE
        steps = (braces == _OPEN).astype(np.int8) - (braces == _CLOSE).astype(np.int8)
        steps[inside] = 0
        depths = depth + np.cumsum(steps, dtype=np.int32)
        yield begin, part, depths, inside
        depth, quoted = int(depths[-1]), bool(inside[-1])
