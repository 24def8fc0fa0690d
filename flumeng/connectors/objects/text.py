"""The text of an item or of an archive's member, block by block, in UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from flumeng.connectors.objects.content import Content
from flumeng.connectors.objects.formats import is_utf8
from flumeng.control.snapshot.items import MOST_POSITION
from flumeng.platform.errors import CorruptError

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MARK_BYTES = 4


def text_from(content: Content, encoding: str, position: int) -> tuple[int, Iterator[bytes]]:
    """Where the text can be read from that is nearest below ``position``, and its blocks. Raises
    CorruptError for UTF-16 that is to be read as UTF-8."""
    if not is_utf8(encoding):
        return 0, _bounded(_decoded(content.blocks(), encoding), 0)
    beginning = content.beginning(_MARK_BYTES)
    if beginning[:2] in _UTF16 and 0 in beginning[2:]:
        raise CorruptError("it begins as UTF-16 does, and not as UTF-8: say `encoding: utf-16`")
    if content.seekable:
        return position, _bounded(content.blocks(position), position)
    return 0, _bounded(content.blocks(), 0)


def without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same without a byte order mark at the beginning."""
    yield next(blocks, b"").removeprefix(codecs.BOM_UTF8)
    yield from blocks


def _decoded(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """What is no text in ``encoding`` becomes U+FFFD."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in blocks:
        if text := decoder.decode(block):
            yield text.encode("utf-8", "replace")
    if text := decoder.decode(b"", final=True):
        yield text.encode("utf-8", "replace")


def _bounded(blocks: Iterator[bytes], position: int) -> Iterator[bytes]:
    for block in blocks:
        position += len(block)
        if position > MOST_POSITION:
            raise CorruptError(f"it holds more than {MOST_POSITION} bytes")
        yield block
