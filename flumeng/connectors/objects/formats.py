"""The formats of items: which module finds the events of each, and which items may be cut."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from flumeng.connectors.objects.options import Format, ObjectsSource
from flumeng.platform.errors import CorruptError
from flumeng.platform.options.patterns import split_query

if TYPE_CHECKING:
    from flumeng.connectors.objects.content import Content
    from flumeng.connectors.objects.parts import Part

MODULES: Mapping[Format, str] = {
    "lines": "flumeng.connectors.objects.lines",
    "ndjson": "flumeng.connectors.objects.lines",
    "json": "flumeng.connectors.objects.json_elements",
    "csv": "flumeng.connectors.objects.csv_rows",
    "parquet": "flumeng.connectors.objects.parquet_rows",
    "avro": "flumeng.connectors.objects.avro_rows",
}
SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2", ".xz": "xz"}
"""Of compressed items, and what they are by that."""
TAR_SUFFIXES = (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst")
_WHOLE = (*SUFFIXES, *TAR_SUFFIXES, ".zip")
_AS_THEY_ARE = ("utf-8", "ascii")

FindParts = Callable[["Content", ObjectsSource, int, int], Iterator["Part"]]
"""Given a content, what is said of its format, and two positions, the parts between them."""


def parts_of(form: Format) -> FindParts:
    found: FindParts = import_module(MODULES[form]).parts
    return found


def chosen(source: ObjectsSource, names: Sequence[str]) -> list[str]:
    """Which columns of those that there are. Raises CorruptError when none is to be taken."""
    if source.columns is None:
        return list(names)
    found = [name for name in names if name in source.columns]
    if names and not found:
        raise CorruptError(f"it has none of the columns {', '.join(source.columns)}")
    return found


def cuttable(source: ObjectsSource) -> Callable[[str], bool]:
    """Whether the source's item at a location may be read in parts: when ranges that begin inside
    an item cost no more than those that do not. Others are read from their beginning each time."""
    if source.format not in ("lines", "ndjson") or not is_utf8(source.encoding):
        return lambda _location: False
    return lambda location: not split_query(location)[0].endswith(_WHOLE)


def is_utf8(encoding: str) -> bool:
    """Whether text in it is read as it is. Raises LookupError for one that nobody knows."""
    return codecs.lookup(encoding).name in _AS_THEY_ARE
