"""ArcSight's Common Event Format: ``CEF:0|vendor|product|version|class|name|severity|a=1 b=two``.

A value goes on to the next name, which is the word before an ``=`` that no backslash stands before.
What is no name by its letters, as in ``url=http://a/?b=c``, is a part of the value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import ByteColumn, Positions, text
from flumeng.events.reasons import because
from flumeng.filters.formats import Found
from flumeng.filters.formats.fields import Field, columns_of_fields, fields_of, found_of
from flumeng.filters.formats.pairs import Pairs
from flumeng.filters.formats.quotes import behind_backslash
from flumeng.filters.formats.security_header import Header, trimmed
from flumeng.filters.options.parse import CEF, Parse

_NAME = r"^[A-Za-z0-9_.\[\]-]+$"
_MOST_SPACES = 8
_LINE_ENDS = ((r"((?:^|[^\\])(?:\\\\)*)\\n", "\\1\n"), (r"((?:^|[^\\])(?:\\\\)*)\\r", "\\1\r"))


@dataclass(frozen=True)
class CefReader:
    fields: tuple[Field, ...]
    into: str | None

    @classmethod
    def of(cls, options: Parse) -> CefReader:
        return cls(fields_of(options), options.into)

    @property
    def columns(self) -> pa.Schema:
        header = [pa.field(name, pa.string()) for name in CEF]
        return pa.schema([*header, *columns_of_fields(self.fields, self.into)])

    def read(self, bodies: pa.Array, _received: pa.Array) -> Found:
        flat = trimmed(bodies)
        pipes = flat.find("|")
        header = Header.of(bodies, b"CEF:", len(CEF), pipes[~behind_backslash(flat, pipes)])
        pairs = _extension(header)
        columns, misfits = pairs.columns("cef", self.fields, self.into)
        unread = pc.coalesce(
            because("cef: no CEF:", ~header.named),
            because("cef: too few fields", ~header.whole),
        )
        names = [*CEF, *(field.column for field in self.fields), self.into]
        return found_of(names, [*header.columns(escaped=True), *columns], unread, misfits)


def unescape(texts: pa.Array) -> pa.Array:
    r"""``\n`` and ``\r``, and of any of ``\ = |`` behind a backslash that alone. Of two line ends
    side by side a pattern finds but one, so each is looked for twice."""
    for pattern, end in _LINE_ENDS * 2:
        texts = pc.replace_substring_regex(texts, pattern, end)
    return pc.replace_substring_regex(texts, r"\\([\\=|])", r"\1")


def _extension(header: Header) -> Pairs:
    flat = header.flat
    equals = flat.find("=")
    rows = np.searchsorted(flat.ends, equals, side="right").clip(max=len(flat) - 1)
    within = (equals >= header.behind[rows]) & (equals < flat.ends[rows]) & header.whole[rows]
    equals, rows = equals[within], rows[within]
    plain = ~behind_backslash(flat, equals)
    equals, rows = equals[plain], rows[plain]
    spaces = flat.find(" ")
    before = np.append(spaces, -1)[np.searchsorted(spaces, equals) - 1]
    starts = np.maximum(before + 1, header.behind[rows])
    alone = np.append(-1, equals[:-1])[: len(equals)] < starts  # no name has an = in it
    equals, rows, starts = equals[alone], rows[alone], starts[alone]
    names = text(flat.column(starts, equals, np.ones(len(equals), np.bool_)))
    named = pc.match_substring_regex(names, _NAME).to_numpy(zero_copy_only=False)
    equals, rows, starts = equals[named], rows[named], starts[named]
    followed = np.append(rows[1:] == rows[:-1], False)[: len(rows)]
    ends = np.where(followed, np.append(starts[1:], 0)[: len(rows)] - 1, flat.ends[rows])
    ends = _without_spaces(flat, equals + 1, ends)
    nothing = np.zeros(len(rows), np.bool_)
    backslashes = flat.find("\\")
    at = np.append(backslashes, np.iinfo(np.int64).max)[np.searchsorted(backslashes, equals)]
    return Pairs(
        flat, rows, starts, equals, equals + 1, ends, nothing, at < ends, nothing, unescape
    )


def _without_spaces(flat: ByteColumn, starts: Positions, ends: Positions) -> Positions:
    ends = np.maximum(starts, ends)
    for _ in range(_MOST_SPACES):
        spaced = (flat.at(ends - 1, ends) == ord(" ")) & (ends > starts)
        if not spaced.any():
            break
        ends = ends - spaced
    return ends
