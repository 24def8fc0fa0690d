"""The text of an item, block by block: decompressed, and in UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from flumeng.errors import CorruptError
from flumeng.inputs.objects.compression import MAGIC_BYTES, codec_of, unpacked
from flumeng.inputs.objects.formats import is_utf8
from flumeng.inputs.objects.opened import Opened
from flumeng.state.items import MOST_POSITION

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def text_from(opened: Opened, encoding: str, position: int) -> tuple[int, Iterator[bytes]]:
    """Where the text can be read from that is nearest below ``position``, and its blocks. Raises
    CorruptError for UTF-16 that is to be read as UTF-8."""
    beginning = opened.beginning(MAGIC_BYTES)
    if is_utf8(encoding) and beginning[:2] in _UTF16 and 0 in beginning[2:]:
        raise CorruptError("it begins as UTF-16 does, and not as UTF-8: say `encoding: utf-16`")
    codec = codec_of(beginning, opened.name)
    if codec is None and is_utf8(encoding):
        return position, _bounded(opened.blocks(position), position)
    blocks = opened.blocks() if codec is None else unpacked(opened.blocks, codec)
    return 0, _bounded(blocks if is_utf8(encoding) else _decoded(blocks, encoding), 0)


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
