"""Compressed items: codec detection and block-wise decompression."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, Literal, cast

import pyarrow as pa
from isal import igzip_lib

from flumeng.connectors.objects.content import BlockFile, Blocks, Content, Streamed
from flumeng.connectors.objects.formats import SUFFIXES
from flumeng.platform.errors import CorruptError, FlumengError
from flumeng.platform.memory import require_memory

Codec = Literal["gzip", "zstd", "lz4", "bz2", "xz", "deflate"]
"""``deflate`` occurs only in archives."""
Counted = Callable[[Iterator[bytes]], Iterator[bytes]]

MAGIC_BYTES = 10
_MAGIC: tuple[tuple[bytes, Codec], ...] = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    *((bytes([0x50 + n]) + b"\x2a\x4d\x18", "zstd") for n in range(16)),  # skippable frame
    (b"\x04\x22\x4d\x18", "lz4"),
    *((b"BZh%d1A" % level, "bz2") for level in range(1, 10)),
    *((b"BZh%d\x17\x72" % level, "bz2") for level in range(1, 10)),  # empty
    (b"\xfd7zXZ\x00", "xz"),
)
_UNKNOWN: tuple[tuple[bytes, str], ...] = (
    (b"\xff\x06\x00\x00sNaPpY", "snappy"),
    (b"\x82SNAPPY\x00", "snappy"),
    (b"\x89LZO\x00\r\n\x1a\n", "lzop"),
    (b"\x1f\x9d", "compress"),
    (b"LZIP\x01", "lzip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
)
_UNKNOWN_SUFFIXES = {
    ".snappy": "snappy",
    ".sz": "snappy",
    ".lzo": "lzop",
    ".br": "brotli",
    ".Z": "compress",
    ".lz": "lzip",
    ".7z": "7z",
    ".rar": "rar",
}
UNPACK_BYTES = 1 << 20
XZ_BYTES = 256 << 20
"""Items that need more memory count as damaged; ``xz -9`` takes 65 MiB."""
_IGZIP_ERROR = cast(type[Exception], igzip_lib.error)
_DAMAGE = (OSError, EOFError, ValueError, lzma.LZMAError, _IGZIP_ERROR)


_MEMBERS: dict[Codec, Callable[[], Any]] = {
    "gzip": lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP),
    "deflate": lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE),
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=XZ_BYTES),
}


def codec_of(beginning: bytes, location: str) -> Codec | None:
    """Return the codec; None without compression. Raises CorruptError for an unsupported codec, or
    a name that contradicts the first bytes."""
    unknown = next((name for magic, name in _UNKNOWN if beginning.startswith(magic)), None)
    unknown = unknown or _UNKNOWN_SUFFIXES.get(PurePosixPath(location).suffix)
    if unknown is not None and beginning:
        raise CorruptError(
            f"unsupported compression {unknown}: expected {', '.join(SUFFIXES.values())}"
        )
    actual = next((codec for magic, codec in _MAGIC if beginning.startswith(magic)), None)
    named = SUFFIXES.get(PurePosixPath(location).suffix)
    if actual is None and named is not None and beginning:
        raise CorruptError(f"the name ends like {named}, but the content is not {named}")
    return actual


def content_of(packed: Content, counted: Counted = lambda blocks: blocks) -> Content:
    """Return the decompressed content, or ``packed`` without compression. ``counted`` wraps
    decompressed blocks. Raises CorruptError."""
    codec = codec_of(packed.beginning(MAGIC_BYTES), packed.name)
    if codec is None:
        return packed
    return Streamed(
        packed.name, lambda: counted(_once(unpacked(packed.blocks, codec), codec)), packed.explained
    )


def _once(blocks: Iterator[bytes], codec: Codec) -> Iterator[bytes]:
    """Yield the blocks. Raises CorruptError when they are compressed twice."""
    first = next(blocks, b"")
    while 0 < len(first) < MAGIC_BYTES and (more := next(blocks, b"")):
        first += more
    inner = codec_of(first[:MAGIC_BYTES], "")
    if inner is not None:
        raise CorruptError(f"the data is compressed twice: {inner} inside {codec}")
    if first:
        yield first
    yield from blocks


def unpacked(blocks: Blocks, codec: Codec) -> Iterator[bytes]:
    """Yield the decompressed stream in blocks of up to ``UNPACK_BYTES``. All bytes before damage
    are yielded, then CorruptError is raised: a second pass in small steps finds them."""
    whole_steps = 0
    try:
        for block in _steps(blocks(), codec, lambda: UNPACK_BYTES):
            whole_steps += 1
            yield block
        return
    except FlumengError:
        raise
    except _DAMAGE as error:
        damage = error
    sizes = iter([UNPACK_BYTES] * whole_steps)
    steps = _steps(blocks(), codec, lambda: next(sizes, 1))
    last = bytearray()
    try:
        for number, block in enumerate(steps):
            if number >= whole_steps:
                last += block
                if len(last) == UNPACK_BYTES:
                    yield bytes(last)
                    last.clear()
    except FlumengError:
        raise
    except _DAMAGE:
        pass
    if last:
        yield bytes(last)
    raise CorruptError(f"the {codec} data is damaged: {damage}") from damage


def _steps(blocks: Iterator[bytes], codec: Codec, most: Callable[[], int]) -> Iterator[bytes]:
    if codec in _MEMBERS:
        return _members(blocks, _MEMBERS[codec], most)
    return _frames(blocks, codec, most)


def _members(
    blocks: Iterator[bytes], member: Callable[[], Any], most: Callable[[], int]
) -> Iterator[bytes]:
    decompressor, given = member(), b""
    while True:
        if decompressor.eof:
            given = _past_padding(decompressor.unused_data, blocks)
            if not given:
                return
            decompressor = member()
        elif decompressor.needs_input and not given:
            given = next(blocks, b"")
            if not given:
                raise EOFError("the data is truncated")
        if block := decompressor.decompress(given, most()):
            yield block
        given = b""


def _past_padding(rest: bytes, blocks: Iterator[bytes]) -> bytes:
    """Return the bytes after a member and its zero padding."""
    while not (rest := rest.lstrip(b"\0")):
        rest = next(blocks, b"")
        if not rest:
            break
    return rest


def _frames(blocks: Iterator[bytes], codec: Codec, most: Callable[[], int]) -> Iterator[bytes]:
    source = BlockFile(blocks)
    stream = pa.CompressedInputStream(pa.PythonFile(source, "r"), codec)
    while True:
        try:
            block = stream.read(most())
        except OSError as error:
            source.check()
            require_memory(error)
            raise
        source.check()
        if not block:
            return
        yield block
