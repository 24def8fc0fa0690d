"""Members of a zip in byte order, unpacked like compressed items."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from typing import IO, cast

import pyarrow as pa

from flumeng.connectors.objects.compression import unpacked
from flumeng.connectors.objects.content import Allowance, Member
from flumeng.connectors.objects.open_item import BLOCK_BYTES, OpenItem
from flumeng.platform.errors import CorruptError, UserError

MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of a zip with members, and of an empty one."""
DIRECTORY_BYTES = 32 << 20
_LOCAL = struct.Struct("<4s22xHH")
_TIME_FIELD, _UNIX = 0x5455, 3
_WITH_EVENTS = (0, stat.S_IFREG, stat.S_IFIFO)
"""Kinds of members that are files; the last one was read from a pipe."""
_DAMAGE = (
    zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, LookupError, OverflowError
)  # fmt: skip


def members(opened: OpenItem, allowance: Allowance) -> Iterator[Member]:
    with opened.explained():
        try:
            with zipfile.ZipFile(cast(IO[bytes], _Directory(opened.file()))) as archive:
                infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
        except _DAMAGE as error:
            raise CorruptError(f"the zip is damaged: {error}") from error
    if sum(info.compress_size for info in infos) > opened.item.size:
        raise CorruptError("the zip is damaged: members overlap")
    window = _Window(opened)
    for info in infos:
        allowance.count()
        if _is_file(info):
            blocks = partial(_checked, window, info)
            yield Member(info.filename, _written(info), lambda of=blocks: allowance.of(of()))  # type: ignore[misc]


def _is_file(info: zipfile.ZipInfo) -> bool:
    kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system == _UNIX else 0
    return not info.filename.endswith("/") and kind in _WITH_EVENTS


def _written(info: zipfile.ZipInfo) -> float:
    """Return the modification time in seconds since the epoch; 0 when the zone is unknown."""
    at, extra = 0, info.extra
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == _TIME_FIELD and size >= 5 and extra[at + 4 :][:1] and extra[at + 4] & 1:
            (seconds,) = struct.unpack_from("<i", extra.ljust(at + 9, b"\0"), at + 5)
            return float(seconds)
        at += 4 + size
    return 0.0


def _checked(window: _Window, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the member's bytes. Raises CorruptError for another size or checksum than listed, and
    UserError for an encrypted or unsupported member."""
    if info.flag_bits & 1:
        raise UserError("the zip member is encrypted, and not read")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"unsupported zip compression {info.compress_type}: only deflate is read")
    left, checksum = info.file_size, 0
    for block in _unpacked(window, info):
        data = block[:left]
        left -= len(block)
        checksum = zlib.crc32(data, checksum)
        if data:
            yield data
        if left < 0:
            break
    if left or checksum != info.CRC:
        raise CorruptError("the zip is damaged: wrong size or checksum")


def _unpacked(window: _Window, info: zipfile.ZipInfo) -> Iterator[bytes]:
    blocks = partial(_packed, window, info)
    if not info.file_size:
        return iter(())
    return blocks() if info.compress_type == zipfile.ZIP_STORED else unpacked(blocks, "deflate")


def _packed(window: _Window, info: zipfile.ZipInfo) -> Iterator[bytes]:
    header = window.read(info.header_offset, _LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(MAGIC[0]):
        raise CorruptError("the zip is damaged: its directory has a wrong offset of a member")
    _, name, extra = _LOCAL.unpack(header)
    start = info.header_offset + _LOCAL.size + name + extra
    end = start + info.compress_size
    while start < end and (block := window.read(start, end - start)):
        yield block
        start += len(block)
    if start < end:
        raise CorruptError("the zip is damaged: the file ends inside a member")


class _Window:
    """Reader of an item, forward, with one block in memory."""

    def __init__(self, opened: OpenItem) -> None:
        self._opened = opened
        self._start, self._block = 0, b""

    def read(self, start: int, size: int) -> bytes:
        """Return up to ``size`` bytes, none after the end; a header is always complete."""
        within = start - self._start
        if not 0 <= within <= len(self._block) - min(size, _LOCAL.size):
            most = min(BLOCK_BYTES, self._opened.item.size - start)
            self._block = self._opened.read_at(start, most) if most > 0 else b""
            self._start, within = start, 0
        return self._block[within : within + size]


class _Directory:
    """A zip's file for ``zipfile``, which reads the directory at its end."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > DIRECTORY_BYTES:
            raise CorruptError(f"the zip's directory has more than {DIRECTORY_BYTES >> 20} MiB")
        return bytes(self._file.read(size if size >= 0 else None))
