"""Archives: members of one item as contents with repeatable positions. Never writes to a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from flumeng.connectors.objects import tar_members, zip_members
from flumeng.connectors.objects.compression import content_of
from flumeng.connectors.objects.content import Allowance, Content, Member, Streamed
from flumeng.connectors.objects.formats import SUFFIXES, TAR_SUFFIXES, Part, Rows, Segment
from flumeng.connectors.objects.globs import COPYING, is_hidden
from flumeng.connectors.objects.lines import segments
from flumeng.connectors.objects.open_item import OpenItem
from flumeng.control.snapshot.items import MOST_POSITION, Item
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError

Kind = Literal["tar", "zip"]
FindIn = Callable[[Content, int, int], Iterator[Part]]
_TAR_NAMES = tuple(tar + packed for tar in TAR_SUFFIXES for packed in ("", *SUFFIXES))
_ZIP_NAMES = tuple(".zip" + packed for packed in ("", *SUFFIXES))
_LATEST = 253_402_300_800
"""The year 10000, in seconds since the epoch."""


@dataclass(frozen=True)
class Origin:
    """The source of events: the ``item``, or its archive member at ``path``."""

    item: Item
    path: str
    modified_us: int


def kind_of(content: Content) -> Kind | None:
    """Return the kind of archive, if any. Raises CorruptError when name and content disagree."""
    beginning = content.beginning(tar_members.HEADER_BYTES)
    named: Kind | None = "zip" if content.name.endswith(_ZIP_NAMES) else None
    if content.name.endswith(_TAR_NAMES):
        named = "tar"
    if beginning.startswith(zip_members.MAGIC):
        return "zip"
    is_old = named == "tar"
    if tar_members.is_header(beginning, old=is_old) or (is_old and beginning == b"\0" * 512):
        return "tar"
    if named and beginning:
        raise CorruptError(f"the name ends like a {named}, but the content is not a {named}")
    return None


def parts_of_members(
    opened: OpenItem, content: Content, find: FindIn, allowance: Allowance, *, start: int, end: int
) -> Iterator[tuple[Origin, Part]]:
    """Yield parts in [start, end). Nested archives raise CorruptError after all other members."""
    base, archives = 0, []
    for member in _members(opened, content, allowance):
        name = _shown(member.name)
        parts = [part for part in name.split("/") if part.strip(".")]
        if any(is_hidden(part) or part.endswith(COPYING) for part in parts):
            continue
        try:
            packed = Streamed(name, member.blocks, opened.explained)
            inside = content_of(packed, allowance.of)
            if kind_of(inside) is not None:
                archives.append(name)
                continue
            dated = 0 < member.written < _LATEST
            modified_us = int(member.written * 1_000_000) if dated else opened.item.modified_us
            origin = Origin(opened.item, f"{opened.name}!/{name}", modified_us)
            for part in _shifted(inside, find, base, end):
                base = part.end
                if base > MOST_POSITION:
                    raise CorruptError(f"the archive has data beyond byte {MOST_POSITION}")
                for rest in _from(part, start):
                    yield origin, rest
        except UnavailableError:
            raise
        except FlumengError as error:
            raise type(error)(f"member {name}: {error}") from error
        if base >= end:
            return
    if archives:
        others = f", and {len(archives) - 1} more" if len(archives) > 1 else ""
        raise CorruptError(f"archives in an archive are not read: {archives[0]}{others}")


def _members(opened: OpenItem, content: Content, allowance: Allowance) -> Iterator[Member]:
    if kind_of(content) == "tar":
        return tar_members.members(content.blocks, allowance)
    if content is not opened:
        raise CorruptError("a zip file that is compressed again is not read")
    return zip_members.members(opened, allowance)


def _shifted(inside: Content, find: FindIn, base: int, end: int) -> Iterator[Part]:
    if inside.beginning(1):
        for part in find(inside, 0, end - base):
            if isinstance(part, Segment):
                yield part._replace(position=base + part.position, end=base + part.end)
            else:
                yield part._replace(position=base + part.position)


def _from(part: Part, start: int) -> Iterator[Part]:
    if part.position >= start:
        yield part
    elif isinstance(part, Rows):
        if part.end > start:
            yield part.behind(start)
    elif not part.cut and part.end > start:
        yield from segments(iter([part.data]), part.position, start, part.end)


def _shown(name: str) -> str:
    text = name.encode("utf-8", "replace").decode()
    while text.startswith(("/", "./")):
        text = text[1:]
    return text
