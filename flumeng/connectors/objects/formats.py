"""The formats of items: the module of each, and which items can be read in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module

from flumeng.connectors.objects.content import Content, is_utf8
from flumeng.connectors.objects.options import Format, ObjectsSource
from flumeng.connectors.objects.parts import Part
from flumeng.platform.errors import CorruptError
from flumeng.platform.options.patterns import split_query

MODULES: Mapping[Format, str] = {
    "lines": "flumeng.connectors.objects.lines",
    "ndjson": "flumeng.connectors.objects.lines",
    "json": "flumeng.connectors.objects.json_elements",
    "csv": "flumeng.connectors.objects.csv_rows",
    "parquet": "flumeng.connectors.objects.parquet_rows",
    "avro": "flumeng.connectors.objects.avro_rows",
}
SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2", ".xz": "xz"}
TAR_SUFFIXES = (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst")
_WHOLE = (*SUFFIXES, *TAR_SUFFIXES, ".zip")

FindParts = Callable[[Content, ObjectsSource, int, int], Iterator[Part]]
"""Gives the parts of a content between two positions."""


def parts_of(form: Format) -> FindParts:
    found: FindParts = import_module(MODULES[form]).parts
    return found


def chosen(source: ObjectsSource, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that the source takes. Raises CorruptError when it takes none."""
    if source.columns is None:
        return list(names)
    found = [name for name in names if name in source.columns]
    if names and not found:
        raise CorruptError(f"it has none of the columns {', '.join(source.columns)}")
    return found


def cuttable(source: ObjectsSource) -> Callable[[str], bool]:
    """Whether the source's item at a location can be read from any position, not only from its
    beginning."""
    if source.format not in ("lines", "ndjson") or not is_utf8(source.encoding):
        return lambda _location: False
    return lambda location: not split_query(location)[0].endswith(_WHOLE)
