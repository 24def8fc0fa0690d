"""Members of a tar in order, with one block in memory. A damaged header is an error, not the end as
in ``tarfile``; so are other bytes after the end. Concatenated archives are read as one."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import IO, cast

from flumeng.connectors.objects.compression import UNPACK_BYTES
from flumeng.connectors.objects.content import Allowance, BlockFile, Blocks, Member
from flumeng.platform.errors import CorruptError

HEADER_BYTES = 512
MOST_HEADER_BYTES = 16 << 20
"""Limit of a member's headers in memory: long names and pax attributes."""
_MAGIC = slice(257, 262)
_CHECKSUM = slice(148, 156)
_DAMAGE = (tarfile.TarError, ValueError, LookupError, ArithmeticError, TypeError, RecursionError)
_WITHOUT_EVENTS = (
    tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE,
    tarfile.FIFOTYPE, b"V", b"D",
)  # fmt: skip
"""The last two are GNU's volume name and list of a directory's names."""


def is_header(block: bytes, *, old: bool) -> bool:
    """Return whether ``block`` is a tar header; ``old`` ones have a checksum, but no magic."""
    if len(block) < HEADER_BYTES or (block[_MAGIC] != b"ustar" and not old):
        return False
    checksum = block[_CHECKSUM].strip(b" \0")
    summed = sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ")
    with suppress(ValueError):
        return int(checksum, 8) == summed
    return False


def members(blocks: Blocks, allowance: Allowance) -> Iterator[Member]:
    """Yield the regular files. Read each before requesting the next one; it can be reread."""
    source = _Source(allowance.of(blocks()))
    with _tar_errors(source):
        tar = tarfile.TarFile(
            fileobj=cast(IO[bytes], source),
            tarinfo=_Header,
            ignore_zeros=True,
            encoding="utf-8",
            errors="replace",
        )
    number = 0
    while True:
        with _tar_errors(source):
            source.allowed = MOST_HEADER_BYTES
            info = tar.next()
            tar.members.clear()  # type: ignore[attr-defined]
        if info is None:
            return
        allowance.count()
        if info.type in _WITHOUT_EVENTS:
            continue
        if not info.isreg():
            raise CorruptError(f"{info.name}: unsupported type of tar member: {info.type!r}")
        live = (
            _holes_filled(tar, source, info, allowance) if info.issparse() else _data(source, info)
        )
        yield Member(
            info.name, info.mtime, _first(live, partial(_again, blocks, allowance, number))
        )
        number += 1


def _again(blocks: Blocks, allowance: Allowance, number: int) -> Iterator[bytes]:
    """Yield the blocks of file ``number``, by rereading the whole archive."""
    for member in islice(members(blocks, allowance), number, number + 1):
        yield from member.blocks()


def _first(live: Iterator[bytes], again: Blocks) -> Blocks:
    left = [live]
    return lambda: left.pop() if left else again()


class _Source(BlockFile):
    """A tar as a forward-only file for ``tarfile``, limited to ``allowed`` bytes."""

    allowed = MOST_HEADER_BYTES

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self.allowed:
            raise CorruptError(f"the tar has a header of over {MOST_HEADER_BYTES >> 20} MiB")
        self.allowed -= size
        return super().read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        """Skip data up to ``position``, at most to the end of the blocks."""
        missing = position - self.tell()
        if whence or missing < 0:
            raise CorruptError("the tar is damaged: members overlap")
        while missing and (passed := super().read(min(missing, UNPACK_BYTES))):
            missing -= len(passed)
        return self.tell()


class _Header(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(tarfile_)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"at byte {tarfile_.offset}: {error}") from error


@contextmanager
def _tar_errors(source: BlockFile) -> Iterator[None]:
    """Convert errors; an error of the blocks takes precedence over ``tarfile``'s own."""
    try:
        yield
    except _DAMAGE as error:
        source.check()
        raise CorruptError(f"the tar is damaged: {error}") from error
    source.check()


def _data(source: _Source, info: tarfile.TarInfo) -> Iterator[bytes]:
    source.seek(info.offset_data)
    left = info.size
    if left < 0:
        raise CorruptError(f"the tar is damaged: {info.name} has {left} bytes")
    while left:
        source.allowed = MOST_HEADER_BYTES
        block = source.read(min(left, UNPACK_BYTES))
        if not block:
            source.check()
            raise CorruptError(f"the tar is truncated: {left} bytes are missing")
        yield block
        left -= len(block)


def _holes_filled(
    tar: tarfile.TarFile, source: _Source, info: tarfile.TarInfo, allowance: Allowance
) -> Iterator[bytes]:
    """Yield the bytes of a sparse file; holes are zeros, and count as unpacked."""
    end = 0
    for offset, size in cast(list[tuple[int, int]], info.sparse):
        if size and (size < 0 or offset < end):
            raise CorruptError("the tar is damaged: holes overlap")
        end = max(end, offset + size)
    file = tar.extractfile(info)
    assert file is not None, "it is a regular file"
    read = cast("Callable[[int], bytes]", file.raw.read)  # type: ignore[attr-defined]
    while True:
        source.allowed = MOST_HEADER_BYTES
        with _tar_errors(source):
            block = read(UNPACK_BYTES)
        if not block:
            return
        allowance.take(len(block))
        yield block
