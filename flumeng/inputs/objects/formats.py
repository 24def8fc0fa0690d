"""The formats of items: which module finds the events of each, and which items may be cut."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from flumeng.spec.objects_source import Format

if TYPE_CHECKING:
    from flumeng.inputs.objects.opened import Opened
    from flumeng.inputs.objects.parts import Part

MODULES: Mapping[Format, str] = {
    "lines": "flumeng.inputs.objects.lines",
    "ndjson": "flumeng.inputs.objects.lines",
    "json": "flumeng.inputs.objects.json_elements",
    "csv": "flumeng.inputs.objects.csv_rows",
    "parquet": "flumeng.inputs.objects.parquet_rows",
    "avro": "flumeng.inputs.objects.avro_rows",
}
SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2", ".xz": "xz"}
"""Of compressed items, and what they are by that."""
_AS_THEY_ARE = ("utf-8", "ascii")

FindParts = Callable[["Opened", str, int, int], Iterator["Part"]]
"""Given an item, the encoding of its text, and two positions in it, the parts between them."""


def parts_of(form: Format) -> FindParts:
    found: FindParts = import_module(MODULES[form]).parts
    return found


def splittable(location: str, form: Format, encoding: str) -> bool:
    """Whether ranges that begin inside an item cost no more than those that do not: others are read
    from their beginning each time. ``location`` has no query."""
    if form not in ("lines", "ndjson") or not is_utf8(encoding):
        return False
    return PurePosixPath(location).suffix not in SUFFIXES


def is_utf8(encoding: str) -> bool:
    """Whether text in it is read as it is. Raises LookupError for one that nobody knows."""
    return codecs.lookup(encoding).name in _AS_THEY_ARE
