"""What an answer over HTTP has in it, as it comes: decompressed, and in UTF-8."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterable, Iterator
from email.message import Message

from flumeng.platform.errors import CorruptError, UserError

_GZIP = ("gzip", "x-gzip")
_NO_TEXTS = frozenset({"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined"})
"""What Python calls encodings, and no server does."""
_AS_THEY_ARE = frozenset({"utf-8", "ascii"})


def unpacked(chunks: Iterable[bytes], encoding: str, limit: int) -> Iterator[bytes]:
    """What ``chunks`` hold, as ``Content-Encoding`` says, in pieces of at most ``limit`` + 1 bytes
    in all, or a little more when nothing is compressed.

    Raises CorruptError when it is not so, or ends in the middle of it.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        yield from chunks
    elif name in _GZIP or name == "deflate":
        yield from _inflated(chunks, name, limit + 1)
    else:
        raise CorruptError("it is compressed in a way that was not asked for (Content-Encoding)")


def _inflated(chunks: Iterable[bytes], name: str, left: int) -> Iterator[bytes]:
    """Of gzip one member or several."""
    stream = None
    for chunk in chunks:
        data = chunk
        while data and left > 0:
            if stream is None or (stream.eof and name in _GZIP):
                stream = _stream(name, data)
            if stream.eof:
                raise CorruptError("there is something behind the end of what is compressed")
            try:
                piece = stream.decompress(data, left)
            except zlib.error as error:
                raise CorruptError(
                    f"it is not {name}, as Content-Encoding says: {error}"
                ) from error
            left -= len(piece)
            data = stream.unconsumed_tail or stream.unused_data
            yield piece
        if left <= 0:
            return
    if stream is not None and not stream.eof:
        raise CorruptError(f"it ends in the middle of what is compressed ({name})")


def _stream(name: str, beginning: bytes) -> zlib._Decompress:
    if name in _GZIP:
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    is_zlib = beginning[0] & 0x0F == 8 and beginning[0] >> 4 <= 7
    return zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def text_of(body: bytes, content_type: str) -> bytes:
    """In UTF-8, without a byte order mark. What is no text in the charset that was said becomes
    U+FFFD; what is said to be UTF-8 stays as it is. Raises UserError."""
    charset = _charset(content_type)
    try:
        name = codecs.lookup(charset).name.replace("_", "-")
        if name not in _AS_THEY_ARE:
            if name in _NO_TEXTS:
                raise LookupError(charset)
            body = body.decode(charset, "replace").encode("utf-8", "replace")
    except (LookupError, ValueError) as error:
        raise UserError(f"nobody knows the charset {charset[:40]!r} of Content-Type") from error
    return body.removeprefix(codecs.BOM_UTF8)


def _charset(content_type: str) -> str:
    message = Message()
    message["Content-Type"] = content_type.replace("\r", " ").replace("\n", " ")
    try:
        found = message.get_param("charset", "utf-8")
    except (ValueError, TypeError, LookupError) as error:  # of parts that do not go together
        raise UserError(f"nobody can read this Content-Type: {content_type[:40]!r}") from error
    return found if isinstance(found, str) and found else "utf-8"
